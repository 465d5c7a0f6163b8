const NO_LABEL = "#8a929c";
const SCALE = ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"]; // viridis: equal steps look equal

const channels = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));

/** Color by group: `keys` has a number for each point, -1 for none, and `names` what they are called. */
function colorByGroup(title, keys, names) {
  const counts = new Map();
  for (const key of keys) counts.set(key, (counts.get(key) ?? 0) + 1);
  const present = [...counts.keys()].sort((a, b) => (a < 0 ? 1 : b < 0 ? -1
    : String(names[a]).localeCompare(String(names[b]), "en", { numeric: true })));
  const byKey = new Map(present.map((key, i) => [key, {
    label: key < 0 ? null : names[key],
    count: counts.get(key),
    on: true,
    color: key >= 0 ? COLORS[i % COLORS.length] : present.length > 1 ? NO_LABEL : COLORS[0],
    shape: Math.floor(i / COLORS.length) % SHAPES.length,
  }]));
  const groups = [...byKey.values()];
  for (const group of groups) group.ink = channels(group.color);
  const byPoint = Array.from(keys, (key) => byKey.get(key));
  return { title, groups, group: (i) => byPoint[i], text: (i) => byPoint[i].label };
}

/** Color by a number of each point, from the smallest to the largest. */
function colorByValue(title, values) {
  const sorted = Float32Array.from(values).sort();
  const [low, high] = [sorted[0], sorted[sorted.length - 1]];
  const inks = SCALE.map(channels);
  const stops = inks.length - 1;
  // by rank: a few far outliers would else leave one color to all others
  const rank = (value) => {
    let [first, last] = [0, sorted.length];
    while (first < last) {
      const middle = (first + last) >> 1;
      if (sorted[middle] < value) first = middle + 1;
      else last = middle;
    }
    return first / Math.max(1, sorted.length - 1);
  };
  const group = { on: true, shape: 0, color: SCALE[2] };
  const colors = Array.from(values, (value) => {
    const place = rank(value) * stops;
    const at = Math.min(stops - 1, Math.floor(place));
    return inks[at].map((one, c) => Math.round(one + (inks[at + 1][c] - one) * (place - at)));
  });
  return { title, groups: null, group: () => group, ink: (i) => colors[i], low, high, text: (i) => `${title} ${formatNumber(values[i])}` };
}

/** Buttons that hide and show groups, or the ends of a scale. */
function buildLegend(coloring, view, repaint) {
  if (!coloring.groups) {
    const bar = html("div", { class: "scale", role: "img", "aria-label": "From low to high: from violet to yellow" });
    bar.style.background = `linear-gradient(to right, ${SCALE.join(",")})`;
    return html("div", { class: "side" }, html("p", { class: "small" }, `Color by rank of the ${coloring.title}: yellow is unlike all others.`),
      bar, html("p", { class: "ends small" }, html("span", {}, formatNumber(coloring.low)), html("span", {}, formatNumber(coloring.high))));
  }
  const { groups } = coloring;
  const list = html("ul", { class: "legend", "aria-label": coloring.title });
  const items = groups.map((group) => {
    const swatch = html("canvas", { width: 28, height: 28, "aria-hidden": "true" });
    const context = swatch.getContext("2d");
    context.fillStyle = group.color;
    tracePath(context, SHAPES[group.shape], 14, 14, 10);
    context.fill();
    const item = button("", (event) => {
      if (event.shiftKey) for (const other of groups) other.on = other === group;
      else group.on = !group.on;
      refresh();
    });
    item.append(swatch, html("span", {}, group.label ?? "no label"), html("small", {}, formatNumber(group.count)));
    for (const [event, value] of [["pointerenter", group], ["focus", group], ["pointerleave", null], ["blur", null]]) {
      item.addEventListener(event, () => { view.highlighted = value; repaint(); });
    }
    list.append(html("li", {}, item));
    return item;
  });
  function refresh() {
    groups.forEach((group, i) => items[i].setAttribute("aria-pressed", group.on));
    repaint();
  }
  const all = (on) => () => { for (const group of groups) group.on = on; refresh(); };
  refresh();
  const tools = html("div", { class: "tools" }, button("All", all(true)), button("None", all(false)));
  const hint = `Click a ${coloring.title} to hide or show it; with Shift, to see it alone.`;
  return html("div", { class: "side" }, html("p", { class: "small" }, hint), tools, list);
}
