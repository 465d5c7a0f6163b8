// Okabe and Ito's colors, which color-blind readers can distinguish; then other shapes.
const COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
const SHAPES = ["circle", "square", "triangle", "diamond", "cross"];
const NO_LABEL = "#8a929c";
const EDGE = 26; // pixels kept free around the map
const REACH = 14; // pixels from which a dot can be pointed at

function trace(pen, shape, x, y, r) {
  pen.beginPath();
  if (shape === "circle") pen.arc(x, y, r, 0, 2 * Math.PI);
  else if (shape === "square") pen.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8);
  else {
    const turns = { triangle: 3, diamond: 4, cross: 8 }[shape];
    for (let i = 0; i < turns; i++) {
      const far = shape === "cross" && i % 2 ? r * 0.45 : r * 1.25;
      const angle = -Math.PI / 2 + (2 * Math.PI * i) / turns;
      pen.lineTo(x + far * Math.cos(angle), y + far * Math.sin(angle));
    }
    pen.closePath();
  }
}

/** Points by label, in reading order, each group with its color and shape. */
function groupsOf(points) {
  const byLabel = new Map();
  for (const point of points) {
    const label = point.label ?? null;
    if (!byLabel.has(label)) byLabel.set(label, { label, count: 0, on: true });
    point.group = byLabel.get(label);
    point.group.count += 1;
  }
  const groups = [...byLabel.values()].sort((a, b) =>
    a.label === null ? 1 : b.label === null ? -1
      : String(a.label).localeCompare(String(b.label), "en", { numeric: true }));
  groups.forEach((group, i) => {
    group.color = group.label !== null ? COLORS[i % COLORS.length] : groups.length > 1 ? NO_LABEL : COLORS[0];
    group.shape = SHAPES[Math.floor(i / COLORS.length) % SHAPES.length];
  });
  return groups;
}

function legendOf(groups, view, redraw) {
  const list = make("ul", { class: "legend", "aria-label": "Labels" });
  const items = groups.map((group) => {
    const swatch = make("canvas", { width: 28, height: 28, "aria-hidden": "true" });
    const pen = swatch.getContext("2d");
    pen.fillStyle = group.color;
    trace(pen, group.shape, 14, 14, 10);
    pen.fill();
    const item = button("", (event) => {
      if (event.shiftKey) for (const other of groups) other.on = other === group;
      else group.on = !group.on;
      refresh();
    });
    item.append(swatch, make("span", {}, group.label ?? "no label"), make("small", {}, number(group.count)));
    for (const [kind, value] of [["pointerenter", group], ["focus", group], ["pointerleave", null], ["blur", null]]) {
      item.addEventListener(kind, () => { view.stressed = value; redraw(); });
    }
    list.append(make("li", {}, item));
    return item;
  });
  function refresh() {
    groups.forEach((group, i) => items[i].setAttribute("aria-pressed", group.on));
    redraw();
  }
  const all = (on) => () => { for (const group of groups) group.on = on; refresh(); };
  refresh();
  const tools = make("div", { class: "tools" }, button("All", all(true)), button("None", all(false)));
  const hint = "Click a label to hide or show it; with Shift, to see it alone.";
  return make("div", { class: "side" }, make("p", { class: "small" }, hint), tools, list);
}

function showMap(host, layout) {
  const absent = "No map was saved for this run. It is written when training ends.";
  withSheet(host, layout, absent, (sheet) => {
    const points = layout.points
      .map((point, tile) => ({ ...point, tile }))
      .filter((point) => typeof point.x === "number" && typeof point.y === "number");
    if (!points.length) return host.append(missing("The map has no image with a finite position."));
    drawMap(host, layout, sheet, points);
  });
}

function drawMap(host, layout, sheet, points) {
  const groups = groupsOf(points);
  const labeled = groups.some((group) => group.label !== null);
  const canvas = make("canvas", {
    class: "map", tabindex: "0", role: "application",
    "aria-label": `Map of ${number(points.length)} images. Arrow keys go from image to image, + and − zoom.`,
  });
  const pen = canvas.getContext("2d");
  const span = (key) => {
    const least = points.reduce((low, point) => Math.min(low, point[key]), Infinity);
    return [least, points.reduce((high, point) => Math.max(high, point[key]), -Infinity)];
  };
  const [[left, right], [low, high]] = [span("x"), span("y")];
  const view = { zoom: 1, x: 0, y: 0, width: 0, height: 0, chosen: null, stressed: null, images: !labeled };

  function place({ x, y }) {
    const room = Math.min((view.width - 2 * EDGE) / (right - left || 1), (view.height - 2 * EDGE) / (high - low || 1));
    const scale = room * view.zoom;
    return [
      view.width / 2 + view.x + (x - (left + right) / 2) * scale,
      view.height / 2 + view.y - (y - (low + high) / 2) * scale,
    ];
  }

  function redraw() {
    if (!view.width) return;
    const sharp = devicePixelRatio || 1;
    canvas.width = view.width * sharp;
    canvas.height = view.height * sharp;
    pen.scale(sharp, sharp);
    const small = clamp(view.width / 700, 0.6, 1) * Math.sqrt(view.zoom);
    const r = clamp(5.5 - points.length / 1000, 3, 5) * small;
    const side = 24 * small;
    const { tile, columns } = layout;
    pen.lineWidth = view.images ? 2 : 0.75;
    for (const point of points.filter((one) => one.group.on)) {
      const [x, y] = place(point);
      pen.globalAlpha = view.stressed && view.stressed !== point.group ? 0.1 : 0.9;
      pen.strokeStyle = view.images ? point.group.color : "rgba(20, 24, 30, 0.55)";
      if (view.images) {
        const from = [(point.tile % columns) * tile, Math.floor(point.tile / columns) * tile];
        pen.drawImage(sheet, ...from, tile, tile, x - side / 2, y - side / 2, side, side);
        if (labeled) pen.strokeRect(x - side / 2, y - side / 2, side, side);
      } else {
        pen.fillStyle = point.group.color;
        trace(pen, point.group.shape, x, y, r);
        pen.fill();
        pen.stroke();
      }
    }
    if (!view.chosen) return;
    pen.globalAlpha = 1;
    pen.lineWidth = 2.5;
    pen.strokeStyle = getComputedStyle(canvas).color;
    pen.beginPath();
    pen.arc(...place(view.chosen), (view.images ? side * 0.72 : r + 4), 0, 2 * Math.PI);
    pen.stroke();
  }

  function choose(point) {
    if (point !== view.chosen) {
      view.chosen = point;
      redraw();
    }
    if (!point) return hideTip();
    const [x, y] = place(point);
    const box = canvas.getBoundingClientRect();
    const lines = [point.name, point.label ?? null];
    showTip(box.left + x, box.top + y, lines, cut(sheet, layout, point.tile, ""));
  }

  function closest(x, y, reach) {
    let best = null;
    for (const point of points.filter((one) => one.group.on)) {
      const [px, py] = place(point);
      const distance = Math.hypot(px - x, py - y);
      if (distance < reach) [best, reach] = [point, distance];
    }
    return best;
  }

  function zoom(factor, x = view.width / 2, y = view.height / 2) {
    const next = clamp(view.zoom * factor, 1, 40);
    const ratio = next / view.zoom;
    view.x = next === 1 ? 0 : (view.x - (x - view.width / 2)) * ratio + (x - view.width / 2);
    view.y = next === 1 ? 0 : (view.y - (y - view.height / 2)) * ratio + (y - view.height / 2);
    view.zoom = next;
    choose(null);
    redraw();
  }

  function pointAt(event, reach) {
    const box = canvas.getBoundingClientRect();
    choose(closest(event.clientX - box.left, event.clientY - box.top, reach));
  }

  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") pointAt(event, 2 * REACH);
    else held = [event.clientX - view.x, event.clientY - view.y];
  });
  canvas.addEventListener("pointermove", (event) => {
    if (held && event.buttons && view.zoom > 1) {
      [view.x, view.y] = [event.clientX - held[0], event.clientY - held[1]];
      return choose(null), redraw();
    }
    pointAt(event, REACH);
  });
  canvas.addEventListener("pointerup", () => (held = null));
  canvas.addEventListener("pointerleave", (event) => {
    held = null;
    if (event.pointerType !== "touch") choose(null);
  });
  canvas.addEventListener("blur", () => choose(null));
  // a plain wheel scrolls the page; with Ctrl, or two fingers on a pad, it zooms
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY / 200), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });

  /** The nearest shown image within an eighth of a turn either side of a direction. */
  function neighbor([dx, dy]) {
    if (!view.chosen) return closest(view.width / 2, view.height / 2, Infinity);
    const [x, y] = place(view.chosen);
    let [best, reach] = [view.chosen, Infinity];
    for (const point of points.filter((one) => one.group.on && one !== view.chosen)) {
      const [px, py] = place(point);
      const [along, aside] = [(px - x) * dx + (py - y) * dy, Math.abs((px - x) * dy + (py - y) * dx)];
      if (along > 0 && aside <= along && along + aside < reach) [best, reach] = [point, along + aside];
    }
    return best;
  }
  canvas.addEventListener("keydown", (event) => {
    const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (ways[event.key]) choose(neighbor(ways[event.key]));
    else if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 1.5 : 1 / 1.5);
    else if (event.key === "0" || event.key === "Escape") zoom(0);
    else return;
    event.preventDefault();
  });

  const mode = button("Show images", () => {
    view.images = !view.images;
    mode.setAttribute("aria-pressed", view.images);
    redraw();
  });
  mode.setAttribute("aria-pressed", view.images);
  const tools = make("div", { class: "tools" }, mode, button("Zoom in", () => zoom(1.5)),
    button("Zoom out", () => zoom(1 / 1.5)), button("Full map", () => zoom(0)));
  const frame = make("div", { class: "frame" }, canvas);
  const method = layout.method === "PCA"
    ? "Reduced to two dimensions by PCA: the directions of the largest variance."
    : `Reduced to two dimensions by ${layout.method ?? "t-SNE"}, which preserves neighborhoods; distances between groups mean little.`;
  const advice = labeled
    ? "With good features, dots of one color are close together, although training used no labels."
    : "Without labels, check whether neighboring images show similar things.";
  host.append(make("p", { class: "small" }, `${method} ${advice}`));
  const main = make("div", {}, tools, frame);
  host.append(make("div", { class: labeled ? "atlas" : "" }, main, labeled ? legendOf(groups, view, redraw) : null));
  onWidth(frame, (width) => {
    view.width = width;
    view.height = Math.round(clamp(width * 0.8, 280, 600));
    canvas.style.height = `${view.height}px`;
    redraw();
  });
}
