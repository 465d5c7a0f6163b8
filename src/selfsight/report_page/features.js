const SERIES_CLASSES = ["first", "second"];

/** Scale of an axis in pixels, and its ticks; with `zero`, the axis includes 0. */
function axis(values, length, { log = false, zero = false }) {
  const size = (value) => (log ? Math.log10(value) : value);
  const sizes = values.map(size);
  const low = zero ? Math.min(0, ...sizes) : Math.min(...sizes);
  const high = Math.max(...sizes) + (Math.max(...sizes) - low || 1) * 0.04;
  const at = (value) => ((size(value) - low) / (high - low)) * length;
  if (!log) return { at, marks: ticks(low, high, 5) };
  const powers = [];
  const every = Math.ceil((high - low) / 5);
  for (let power = Math.ceil(low); power <= high; power += every) powers.push(10 ** power);
  return { at, marks: powers.length > 1 ? powers : values };
}

/** One chart: lines, histograms, or points with their standard deviation and bound. */
function chart({ title, meaning, log = "", series }) {
  const names = series.map(({ name }, i) => html("span", { class: SERIES_CLASSES[i] }, name));
  const area = html("div", { class: "plot still", role: "img", "aria-label": `${title}: ${meaning}` });
  const key = html("div", { class: "key" }, ...names);
  const all = series.flatMap(({ points, bound = [] }) => [...points, ...bound]);
  const tops = all.map(([, value, spread = 0]) => value + spread);
  onWidth(area, (width) => {
    const inner = { w: width - FRAME.left - FRAME.right, h: FRAME.height - FRAME.top - FRAME.bottom };
    const across = [...new Set(all.map(([place]) => place))];
    const x = axis(across, inner.w, { log: log.includes("x") });
    const y = axis(tops, inner.h, { log: log.includes("y"), zero: !log.includes("y") });
    const axes = svg("g", { transform: `translate(${FRAME.left} ${FRAME.top})` });
    const up = (value) => inner.h - y.at(value);
    for (const value of y.marks) {
      axes.append(
        svg("line", { class: "grid", x1: 0, x2: inner.w, y1: up(value), y2: up(value) }),
        svg("text", { class: "tick", x: -8, y: up(value) + 4, "text-anchor": "end" }, tickText(value)),
      );
    }
    for (const value of x.marks) {
      const place = { class: "tick", x: x.at(value), y: inner.h + 17, "text-anchor": "middle" };
      axes.append(svg("text", place, tickText(value)));
    }
    series.forEach((one, i) => axes.append(drawSeries(one, SERIES_CLASSES[i], x.at, up, inner.h)));
    const size = { viewBox: `0 0 ${width} ${FRAME.height}`, "aria-hidden": "true" };
    area.replaceChildren(svg("svg", size, axes));
  });
  return html("figure", { class: "curve" }, html("figcaption", {}, html("h3", {}, title), key), html("p", {}, meaning), area);
}

function drawSeries({ points, bound = [], steps = false }, ink, x, y, floor) {
  const group = svg("g", { class: ink });
  const path = (list) => list.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
  if (steps) {
    const stairs = points.map(([a, b]) => `H${x(a).toFixed(1)}V${y(b).toFixed(1)}`).join("");
    const outline = `M${x(points[0][0]).toFixed(1)} ${floor}${stairs}V${floor}Z`;
    group.append(svg("path", { class: "line filled", d: outline }));
    return group;
  }
  group.append(svg("path", { class: "line", d: path(points) }));
  if (bound.length) group.append(svg("path", { class: "bound", d: path(bound) }));
  for (const [a, b, spread] of points.filter((point) => point.length > 2)) {
    group.append(
      svg("line", { class: "spread", x1: x(a), x2: x(a), y1: y(b - spread), y2: y(b + spread) }),
      svg("circle", { class: "record", r: 3, cx: x(a), cy: y(b) }),
    );
  }
  return group;
}

function showFeatures(host, charts) {
  if (!charts.length) {
    return host.append(missing("Not analyzed yet. A command under Next steps, at the end of this page, draws the "
      + "spectrum of the features, the similarity of an image's views, and the gradient norm."));
  }
  host.append(html("div", { class: "grid" }, ...charts.map(chart)));
}
