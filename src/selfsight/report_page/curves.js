const FRAME = { left: 54, right: 20, top: 12, bottom: 24, height: 190 };

function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) values.push(i * step);
  return values.map((value) => Number(value.toPrecision(12)));
}

function tickText(value, unit) {
  if (unit === "percent") return `${Number((100 * value).toPrecision(6))} %`;
  if (Math.abs(value) >= 10000) return value.toLocaleString("en", { notation: "compact" });
  return formatNumber(value);
}

function nearest(points, step) {
  let low = 0;
  let high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < step) low = middle;
    else high = middle;
  }
  return Math.abs(points[low][0] - step) <= Math.abs(points[high][0] - step) ? low : high;
}

/** Mean over a window around each point, one fortieth of all points wide. */
function movingAverage(points) {
  const sums = [0];
  for (const [, , value] of points) sums.push(sums[sums.length - 1] + value);
  const half = Math.ceil(points.length / 80);
  return points.map(([step, epoch], i) => {
    const [from, to] = [Math.max(0, i - half), Math.min(points.length, i + half + 1)];
    return [step, epoch, (sums[to] - sums[from]) / (to - from)];
  });
}

/** The y axis of a curve; zoomed in, it fits the values alone. */
function axisRange(curve, points, zoomed) {
  if (zoomed) curve = { levels: {}, from_zero: false };
  const values = points.map((point) => point[2]).concat(Object.values(curve.levels));
  let low = Math.min(...values);
  let high = Math.max(...values, curve.min_top ?? -Infinity);
  if (curve.from_zero !== false && low >= 0) low = 0;
  const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low === 0 && curve.from_zero !== false ? 0 : low - pad, high + pad];
}

/** One curve: its figure, and functions that redraw it and move its cursor. */
function plot(curve, shared) {
  const { points, unit } = curve;
  const readout = html("output", {});
  const area = html("div", { class: "plot", role: "slider", tabindex: "0", "aria-label": curve.title });
  const missingCount = curve.every_record && curve.missing;
  const figure = html(
    "figure",
    { class: "curve" },
    html("figcaption", {}, html("h3", {}, curve.title), readout),
    html("p", {}, curve.meaning),
    area,
    missingCount ? html("p", { class: "warn" }, `${formatNumber(missingCount)} of the records have no finite value.`) : null,
  );
  const smooth = curve.noisy && points.length > 120 ? movingAverage(points) : null;
  const rule = svg("line", { class: "rule" });
  const dot = svg("circle", { class: "dot", r: 4 });
  const band = svg("rect", { class: "band", y: 0 });
  let width = 0;
  let x, y;

  const describe = ([step, epoch, value]) =>
    `step ${formatNumber(step)}${epoch === null ? "" : ` · epoch ${formatNumber(epoch)}`} · ${formatValue(value, unit)}`;

  function redraw() {
    if (!width) return;
    const inner = { w: width - FRAME.left - FRAME.right, h: FRAME.height - FRAME.top - FRAME.bottom };
    const [from, to] = shared.range;
    const first = Math.max(0, points.findIndex((p) => p[0] >= from) - 1);
    const after = points.findIndex((p) => p[0] > to);
    const last = after < 0 ? points.length : after + 1;
    const shown = points.slice(first, last); // one more at either end, so that the line leaves the frame
    const [low, high] = axisRange(curve, shown, shared.zoomed());
    x = (step) => ((step - from) / (to - from)) * inner.w;
    y = (value) => inner.h - ((value - low) / (high - low)) * inner.h;
    const path = (list) =>
      list.map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[2]).toFixed(1)}`).join("");
    const axes = svg("g", { transform: `translate(${FRAME.left} ${FRAME.top})` });
    for (const value of ticks(low, high, 5)) {
      axes.append(
        svg("line", { class: "grid", x1: 0, x2: inner.w, y1: y(value), y2: y(value) }),
        svg("text", { class: "tick", x: -8, y: y(value) + 4, "text-anchor": "end" }, tickText(value, unit)),
      );
    }
    for (const step of ticks(from, to, clamp(Math.floor(inner.w / 80), 2, 8)).filter(Number.isInteger)) {
      const at = { class: "tick", x: x(step), y: inner.h + 17, "text-anchor": "middle" };
      axes.append(svg("text", at, tickText(step)));
    }
    // a nested svg clips what lies outside the zoomed range
    const view = svg("svg", { x: 0, y: 0, width: inner.w, height: inner.h, class: "inside" });
    for (const [name, value] of Object.entries(curve.levels)) {
      const above = y(value) > 16;
      view.append(
        svg("line", { class: "level", x1: 0, x2: inner.w, y1: y(value), y2: y(value) }),
        svg("text", { class: "level-name", x: inner.w - 4, y: y(value) + (above ? -5 : 14), "text-anchor": "end" },
          `${name} ${formatValue(value, unit)}`),
      );
    }
    if (shown.length > 1) view.append(svg("path", { class: smooth ? "line pale" : "line", d: path(shown) }));
    if (smooth) view.append(svg("path", { class: "line", d: path(smooth.slice(first, last)) }));
    if (shown.length <= 40) {
      view.append(...shown.map((p) => svg("circle", { class: "record", r: 2.5, cx: x(p[0]), cy: y(p[2]) })));
    }
    for (const p of points.filter((one) => curve.dips?.includes(one[0]))) {
      view.append(svg("circle", { class: "dip", r: 4, cx: x(p[0]), cy: y(p[2]) }));
    }
    band.setAttribute("height", inner.h);
    rule.setAttribute("y2", inner.h);
    view.append(band, rule);
    axes.append(view, dot);
    const size = { viewBox: `0 0 ${width} ${FRAME.height}`, "aria-hidden": "true" };
    area.replaceChildren(svg("svg", size, axes));
    point(shared.at);
  }

  /** Move the cursor to the record nearest to a step; null removes it. */
  function point(step) {
    let record = points[step === null ? points.length - 1 : nearest(points, step)];
    const inside = step !== null && x && record[0] >= shared.range[0] && record[0] <= shared.range[1];
    if (!inside) record = points[points.length - 1];
    readout.textContent = inside ? describe(record) : `last: ${formatValue(record[2], unit)}`;
    for (const mark of [rule, dot]) mark.style.display = inside ? "" : "none";
    area.setAttribute("aria-valuemin", points[0][0]);
    area.setAttribute("aria-valuemax", points[points.length - 1][0]);
    area.setAttribute("aria-valuenow", record[0]);
    area.setAttribute("aria-valuetext", describe(record));
    if (!inside) return null;
    rule.setAttribute("x1", x(record[0]));
    rule.setAttribute("x2", x(record[0]));
    dot.setAttribute("cx", x(record[0]));
    dot.setAttribute("cy", y(record[2]));
    const box = area.getBoundingClientRect();
    return { x: box.left + FRAME.left + x(record[0]), y: box.top + FRAME.top + y(record[2]), record };
  }

  const stepAt = (event) => {
    const { left } = area.getBoundingClientRect();
    const share = clamp((event.clientX - left - FRAME.left) / (width - FRAME.left - FRAME.right), 0, 1);
    return shared.range[0] + share * (shared.range[1] - shared.range[0]);
  };
  function select(step) {
    shared.move(step);
    const place = point(step);
    if (place) showTip(place.x, place.y, [curve.title, ...describe(place.record).split(" · ")]);
  }
  let start = null;
  area.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") select(stepAt(event));
    else if (event.button === 0) start = stepAt(event);
  });
  area.addEventListener("pointermove", (event) => {
    select(stepAt(event));
    if (start === null) return;
    const [a, b] = [x(start), x(stepAt(event))].sort((p, q) => p - q);
    band.setAttribute("x", a);
    band.setAttribute("width", b - a);
  });
  area.addEventListener("pointerup", (event) => {
    const ends = start === null ? [] : [start, stepAt(event)].sort((p, q) => p - q);
    start = null;
    band.setAttribute("width", 0);
    if (ends.length && x(ends[1]) - x(ends[0]) > 8) shared.zoom(ends);
  });
  area.addEventListener("pointerleave", (event) => {
    start = null;
    band.setAttribute("width", 0);
    if (event.pointerType === "touch") return; // after a touch the value stays visible
    shared.move(null);
    hideTip();
  });
  area.addEventListener("blur", () => { shared.move(null); hideTip(); });
  area.addEventListener("dblclick", () => shared.zoom(null));
  area.addEventListener("keydown", (event) => {
    const at = shared.at === null ? points.length - 1 : nearest(points, shared.at);
    const jump = event.shiftKey ? 10 : 1;
    const to = { ArrowLeft: at - jump, ArrowRight: at + jump, Home: 0, End: points.length - 1 }[event.key];
    if (to !== undefined) select(points[clamp(to, 0, points.length - 1)][0]);
    else if (event.key === "+" || event.key === "-") shared.scale(event.key === "+" ? 0.5 : 2, points[at][0]);
    else if (event.key === "Escape") shared.zoom(null);
    else return;
    event.preventDefault();
  });
  onWidth(area, (now) => { width = now; redraw(); });
  return { figure, redraw, point };
}

/** All curves, with one cursor and one zoom. */
function showCurves(host, list) {
  const logged = list.filter((curve) => curve.points.length);
  const steps = logged.flatMap(({ points }) => [points[0][0], points[points.length - 1][0]]);
  const low = Math.min(...steps);
  const high = Math.max(...steps);
  const fullRange = high > low ? [low, high] : [low - 1, high + 1];
  const plots = [];
  const reset = button("Show all steps", () => shared.zoom(null));
  reset.hidden = true;
  const shared = {
    range: fullRange,
    at: null,
    zoomed: () => shared.range !== fullRange,
    move(step) {
      shared.at = step;
      for (const one of plots) one.point(step);
    },
    zoom(range) {
      shared.range = range && range[1] - range[0] >= 1 ? range : fullRange;
      shared.at = null;
      reset.hidden = !shared.zoomed();
      hideTip();
      for (const one of plots) one.redraw();
    },
    scale(factor, center) {
      const [from, to] = shared.range.map((end) => center + (end - center) * factor);
      const range = [Math.max(from, fullRange[0]), Math.min(to, fullRange[1])];
      if (range[1] - range[0] >= 1) shared.zoom(range[0] === fullRange[0] && range[1] === fullRange[1] ? null : range);
    },
  };
  const hint = logged.length
    ? "The horizontal axis is the training step. Drag across a curve to zoom into all of them, double-click to zoom out; "
      + "on the keyboard, arrows move the cursor and + − zoom. A strong line over a pale one is the moving average."
    : "Nothing has been logged yet. The curves appear here once the run has written its first record.";
  host.append(logged.length ? html("div", { class: "hint" }, html("p", {}, hint), reset) : missing(hint));
  const grid = html("div", { class: "grid" });
  for (const curve of logged.length ? list : []) {
    if (curve.points.length) {
      plots.push(plot(curve, shared));
      grid.append(plots[plots.length - 1].figure);
    } else {
      const caption = html("figcaption", {}, html("h3", {}, curve.title));
      grid.append(html("figure", { class: "curve" }, caption, html("p", {}, curve.meaning), missing(curve.absent)));
    }
  }
  host.append(grid);
}
