const COLORS = 7;
const DASHES = ["", "7 4", "2 3", "9 3 2 3"];
const AXES = { epoch: ["Epochs", 1], step: ["Steps", 0], minutes: ["Minutes", 3] };
const hidden = new Set();
const redraws = [];
let across = "epoch";

function body(id) {
  return document.querySelector(`#${id} .body`);
}

/** Color and dashes of a run, as attributes of a line. */
function ink(run) {
  return { style: `--ink: var(--run-${run % COLORS})`, "stroke-dasharray": DASHES[Math.floor(run / COLORS) % DASHES.length] };
}

function swatch(run) {
  return svg("svg", { class: "swatch", viewBox: "0 0 26 8", "aria-hidden": "true" },
    svg("line", { x1: 0, x2: 26, y1: 4, y2: 4, ...ink(run) }));
}

function table(heads, rows, name) {
  const head = html("tr", {}, ...heads.map((one) => html("th", { scope: "col" }, one)));
  return html("div", { class: "wide" }, html("table", { class: "runs", "aria-label": name },
    html("thead", {}, head), html("tbody", {}, ...rows)));
}

function runName(i) {
  return html("span", { class: "run" }, swatch(i), report.runs[i].name);
}

function showRuns(host) {
  document.getElementById("title").textContent = report.title;
  for (const problem of report.problems) host.append(html("p", { class: "warn" }, problem));
  const rows = report.runs.map((run, i) => {
    const toggle = html("button", { type: "button", "aria-pressed": "true" }, swatch(i), run.name);
    toggle.addEventListener("click", () => {
      if (!hidden.delete(i)) hidden.add(i);
      toggle.setAttribute("aria-pressed", String(!hidden.has(i)));
      for (const redraw of redraws) redraw();
    });
    return html("tr", {}, html("th", { scope: "row" }, toggle),
      ...[run.method, run.seed, run.epochs].map((value) => html("td", {}, formatNumber(value))),
      html("td", {}, duration(run.seconds)), html("td", {}, run.sentence));
  });
  host.append(table(["Run", "Method", "Seed", "Epochs", "Time", "Verdict"], rows, "Runs"));
}

function cellText(cell, unit) {
  if (!cell) return "–";
  const text = formatValue(cell.value, unit);
  const digits = (value) => (unit === "percent" ? (100 * value).toFixed(1) : formatNumber(value));
  return cell.low === null || cell.high === null ? text : `${text} [${digits(cell.low)}, ${digits(cell.high)}]`;
}

function counts(cells) {
  const known = [...new Set(cells.filter((cell) => cell?.n).map((cell) => cell.n))];
  return known.length ? `${known.map(formatNumber).join(" or ")} images` : null;
}

function showResults(host) {
  const { measures, seeds, runs } = report;
  if (!measures.length) {
    return host.append(missing("None of these runs has been evaluated: selfsight evaluate RUN --labeled DATA."));
  }
  const heads = ["Measure", ...runs.map((run, i) => runName(i))];
  const rows = measures.map(({ name, unit, cells }) => {
    const count = counts(cells);
    return html("tr", {}, html("th", { scope: "row" }, name, count ? html("small", {}, count) : null),
      ...cells.map((cell) => html("td", {}, cellText(cell, unit))));
  });
  host.append(table(heads, rows, "Results"));
  if (!seeds.length) return;
  const lines = seeds.map((one) => {
    const spread = one.unit === "percent" ? `${(100 * one.std).toFixed(1)} points` : formatNumber(one.std);
    return html("tr", {}, html("th", { scope: "row" }, one.name), html("td", {}, one.runs.join(", ")),
      html("td", {}, formatNumber(one.n)), html("td", {}, formatValue(one.mean, one.unit)), html("td", {}, spread));
  });
  host.append(html("h3", {}, "Over seeds of one recipe"),
    table(["Measure", "Runs", "Seeds", "Mean", "Standard deviation"], lines, "Over seeds"));
}

/** Axes of a figure in its own group; returns the group and the scales. */
function drawAxes(width, xs, ys, unit, { zero = false, minTop = -Infinity } = {}) {
  const inner = { w: width - FRAME.left - FRAME.right, h: FRAME.height - FRAME.top - FRAME.bottom };
  let [low, high] = [Math.min(...ys), Math.max(...ys, minTop)];
  if (zero && low >= 0) low = 0;
  const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  if (low !== 0 || !zero) low -= pad;
  high += pad;
  let [from, to] = [Math.min(...xs), Math.max(...xs)];
  if (from === to) [from, to] = [from - 1, to + 1];
  const x = (value) => ((value - from) / (to - from)) * inner.w;
  const y = (value) => inner.h - ((value - low) / (high - low)) * inner.h;
  const group = svg("g", { transform: `translate(${FRAME.left} ${FRAME.top})` });
  for (const value of ticks(low, high, 5)) {
    group.append(svg("line", { class: "grid", x1: 0, x2: inner.w, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: -8, y: y(value) + 4, "text-anchor": "end" }, tickText(value, unit)));
  }
  for (const value of ticks(from, to, clamp(Math.floor(inner.w / 80), 2, 8))) {
    group.append(svg("text", { class: "tick", x: x(value), y: inner.h + 17, "text-anchor": "middle" }, tickText(value)));
  }
  return { group, x, y, inner, from, to };
}

/** Put a drawing into its place, scaled to the width. */
function place(area, width, group) {
  area.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${FRAME.height}`, "aria-hidden": "true" }, group));
}

function figure(title, meaning, area, note = null) {
  return html("figure", { class: "curve" }, html("figcaption", {}, html("h3", {}, title), note), html("p", {}, meaning), area);
}

/** The points of a run by the chosen axis: [place, null, value], as curves.js expects them. */
function placed(points) {
  const column = AXES[across][1];
  const scale = across === "minutes" ? 60 : 1;
  return points.filter((p) => p[column] !== null).map((p) => [p[column] / scale, null, p[2]]);
}

function overlay(curve) {
  const { title, meaning, unit, noisy } = curve;
  const readout = html("output", {});
  const area = html("div", { class: "plot still", role: "slider", tabindex: "0", "aria-label": title });
  const rule = svg("line", { class: "rule" });
  let [width, at, drawn, scale] = [0, null, [], null];

  function redraw() {
    if (!width) return;
    drawn = curve.series.filter(({ run }) => !hidden.has(run))
      .map(({ run, points }) => ({ run, points: placed(points) })).filter(({ points }) => points.length);
    if (!drawn.length) return area.replaceChildren();
    const all = drawn.flatMap(({ points }) => points);
    scale = drawAxes(width, all.map((p) => p[0]), all.map((p) => p[2]), unit,
      { zero: curve.from_zero !== false, minTop: curve.min_top });
    const path = (list) => list.map((p, i) => `${i ? "L" : "M"}${scale.x(p[0]).toFixed(1)} ${scale.y(p[2]).toFixed(1)}`).join("");
    for (const { run, points } of drawn) {
      const smooth = noisy && points.length > 120;
      if (smooth) scale.group.append(svg("path", { class: "line pale", d: path(points), style: ink(run).style }));
      if (points.length > 1) scale.group.append(svg("path", { class: "line", d: path(smooth ? movingAverage(points) : points), ...ink(run) }));
      if (points.length <= 40) {
        scale.group.append(...points.map((p) =>
          svg("circle", { class: "record", r: 2.5, cx: scale.x(p[0]), cy: scale.y(p[2]), style: ink(run).style })));
      }
    }
    rule.setAttribute("y2", scale.inner.h);
    scale.group.append(rule);
    place(area, width, scale.group);
    point(null);
  }

  /** Read the value of every run nearest to a place; null shows the last values. */
  function point(value) {
    at = value;
    if (!drawn.length) return;
    const lines = drawn.map(({ run, points }) => {
      const near = points[value === null ? points.length - 1 : nearest(points, value)];
      return `${report.runs[run].name}: ${formatValue(near[2], unit)}`;
    });
    const where = value === null ? "last" : `${AXES[across][0].toLowerCase()} ${formatNumber(Number(value.toPrecision(4)))}`;
    readout.textContent = value === null ? "" : where;
    area.setAttribute("aria-valuemin", scale.from);
    area.setAttribute("aria-valuemax", scale.to);
    area.setAttribute("aria-valuenow", value ?? scale.to);
    area.setAttribute("aria-valuetext", [where, ...lines].join(", "));
    rule.style.display = value === null ? "none" : "";
    if (value === null) return hideTip();
    rule.setAttribute("x1", scale.x(value));
    rule.setAttribute("x2", scale.x(value));
    const box = area.getBoundingClientRect();
    showTip(box.left + FRAME.left + scale.x(value), box.top + box.height / 2, [`${title}, ${where}`, ...lines]);
  }

  area.addEventListener("pointermove", (event) => {
    if (!scale) return;
    const share = clamp((event.clientX - area.getBoundingClientRect().left - FRAME.left) / scale.inner.w, 0, 1);
    point(scale.from + share * (scale.to - scale.from));
  });
  area.addEventListener("pointerleave", () => point(null));
  area.addEventListener("blur", () => point(null));
  area.addEventListener("keydown", (event) => {
    const sign = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!sign || !scale) return;
    const step = (scale.to - scale.from) / 50;
    point(clamp((at ?? scale.to) + sign * step, scale.from, scale.to));
    event.preventDefault();
  });
  onWidth(area, (now) => { width = now; redraw(); });
  redraws.push(redraw);
  return figure(title, meaning, area, readout);
}

function legend() {
  return html("ul", { class: "legend-line", "aria-label": "Legend" }, ...report.runs.map((run, i) => html("li", {}, runName(i))));
}

function showCurves(host) {
  if (!report.curves.length) return host.append(missing("None of these runs has logged anything yet."));
  const choices = Object.entries(AXES).map(([key, [text]]) => {
    const choice = button(text, () => {
      across = key;
      for (const one of choices) one.setAttribute("aria-pressed", String(one === choice));
      for (const redraw of redraws) redraw();
    });
    choice.setAttribute("aria-pressed", String(key === across));
    return choice;
  });
  host.append(html("div", { class: "tools", role: "group", "aria-label": "Horizontal axis" }, ...choices), legend(),
    html("div", { class: "grid" }, ...report.curves.map(overlay)));
}

/** Histograms of all runs in one figure. */
function histogram({ title, meaning, series }) {
  const area = html("div", { class: "plot still", role: "img", "aria-label": `${title}: ${meaning}` });
  let width = 0;
  const redraw = () => {
    const shown = series.filter(({ run }) => !hidden.has(run));
    if (!width || !shown.length) return area.replaceChildren();
    const all = shown.flatMap(({ points }) => points);
    const { group, x, y, inner } = drawAxes(width, all.map((p) => p[0]), all.map((p) => p[1]), "percent", { zero: true });
    for (const one of shown) {
      const drawn = drawSeries(one, "", x, y, inner.h);
      drawn.setAttribute("style", ink(one.run).style);
      drawn.setAttribute("stroke-dasharray", ink(one.run)["stroke-dasharray"]);
      group.append(drawn);
    }
    place(area, width, group);
  };
  onWidth(area, (now) => { width = now; redraw(); });
  redraws.push(redraw);
  return figure(title, meaning, area);
}

function showHistograms(host) {
  if (!report.histograms.length) {
    return host.append(missing("None of these runs was analyzed: selfsight evaluate RUN --protocol analysis."));
  }
  host.append(legend(), html("div", { class: "grid" }, ...report.histograms.map(histogram)));
}

/** One accuracy of every run by the time of its training. */
function scatter({ name, points }) {
  const area = html("div", { class: "plot still", role: "img", "aria-label": `${name} by minutes of training: ${
    points.map((p) => `${report.runs[p.run].name} ${formatPercent(p.value)} in ${duration(p.seconds)}`).join(", ")}` });
  let width = 0;
  const redraw = () => {
    const shown = points.filter(({ run }) => !hidden.has(run));
    if (!width || !shown.length) return area.replaceChildren();
    const ends = shown.flatMap((p) => [p.value, p.low ?? p.value, p.high ?? p.value]);
    const { group, x, y } = drawAxes(width, [0, ...shown.map((p) => p.seconds / 60)], ends, "percent");
    for (const { run, seconds, value, low, high } of shown) {
      const [a, b] = [x(seconds / 60), y(value)];
      if (low !== null && high !== null) {
        group.append(svg("line", { class: "line", x1: a, x2: a, y1: y(low), y2: y(high), style: ink(run).style }));
      }
      const about = `${report.runs[run].name}: ${formatPercent(value)} in ${duration(seconds)}`;
      group.append(svg("circle", { class: "record", r: 4.5, cx: a, cy: b, style: ink(run).style }, svg("title", {}, about)));
    }
    place(area, width, group);
  };
  onWidth(area, (now) => { width = now; redraw(); });
  redraws.push(redraw);
  return figure(name, "Vertical: accuracy. Horizontal: minutes of training.", area);
}

function showTime(host) {
  const { against_time: charts } = report;
  if (!charts.length) return host.append(missing("Fewer than two of these runs have an accuracy and a time."));
  host.append(legend(), html("div", { class: "grid" }, ...charts.map(scatter)));
}

function showSettings(host) {
  const { settings, runs } = report;
  if (!settings.length) return host.append(missing("The recipes are equal."));
  const rows = settings.map(({ name, values }) => html("tr", {}, html("th", { scope: "row" }, name),
    ...values.map((value) => html("td", {}, value === "" ? "–" : value))));
  host.append(table(["Setting", ...runs.map((run, i) => runName(i))], rows, "Settings"));
}

for (const [id, part] of [
  ["runs", showRuns],
  ["results", showResults],
  ["time", showTime],
  ["curves", showCurves],
  ["features", showHistograms],
  ["settings", showSettings],
]) {
  showSection(body(id), () => part(body(id)));
}
