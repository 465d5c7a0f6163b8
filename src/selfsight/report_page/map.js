// Okabe and Ito's colors, which color-blind readers can distinguish; then other shapes.
const COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
const SHAPES = ["circle", "square", "triangle", "diamond", "cross"];
const NO_LABEL = "#8a929c";
const MARGIN = 26; // pixels around the map
const POINTER_RADIUS = 14; // largest distance in pixels between the pointer and the dot it selects

function tracePath(context, shape, x, y, r) {
  context.beginPath();
  if (shape === "circle") context.arc(x, y, r, 0, 2 * Math.PI);
  else if (shape === "square") context.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8);
  else {
    const corners = { triangle: 3, diamond: 4, cross: 8 }[shape];
    for (let i = 0; i < corners; i++) {
      const radius = shape === "cross" && i % 2 ? r * 0.45 : r * 1.25;
      const angle = -Math.PI / 2 + (2 * Math.PI * i) / corners;
      context.lineTo(x + radius * Math.cos(angle), y + radius * Math.sin(angle));
    }
    context.closePath();
  }
}

/** Points by label, in reading order, each group with its color and shape. */
function groupByLabel(points) {
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

function buildLegend(groups, view, redraw) {
  const list = html("ul", { class: "legend", "aria-label": "Labels" });
  const items = groups.map((group) => {
    const swatch = html("canvas", { width: 28, height: 28, "aria-hidden": "true" });
    const context = swatch.getContext("2d");
    context.fillStyle = group.color;
    tracePath(context, group.shape, 14, 14, 10);
    context.fill();
    const item = button("", (event) => {
      if (event.shiftKey) for (const other of groups) other.on = other === group;
      else group.on = !group.on;
      refresh();
    });
    item.append(swatch, html("span", {}, group.label ?? "no label"), html("small", {}, formatNumber(group.count)));
    for (const [event, value] of [["pointerenter", group], ["focus", group], ["pointerleave", null], ["blur", null]]) {
      item.addEventListener(event, () => { view.highlighted = value; redraw(); });
    }
    list.append(html("li", {}, item));
    return item;
  });
  function refresh() {
    groups.forEach((group, i) => items[i].setAttribute("aria-pressed", group.on));
    redraw();
  }
  const all = (on) => () => { for (const group of groups) group.on = on; refresh(); };
  refresh();
  const tools = html("div", { class: "tools" }, button("All", all(true)), button("None", all(false)));
  const hint = "Click a label to hide or show it; with Shift, to see it alone.";
  return html("div", { class: "side" }, html("p", { class: "small" }, hint), tools, list);
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
  const groups = groupByLabel(points);
  const labeled = groups.some((group) => group.label !== null);
  const canvas = html("canvas", {
    class: "map", tabindex: "0", role: "application",
    "aria-label": `Map of ${formatNumber(points.length)} images. Arrow keys go from image to image, + and − zoom.`,
  });
  const context = canvas.getContext("2d");
  const span = (key) => {
    const least = points.reduce((low, point) => Math.min(low, point[key]), Infinity);
    return [least, points.reduce((high, point) => Math.max(high, point[key]), -Infinity)];
  };
  const [[left, right], [low, high]] = [span("x"), span("y")];
  const view = { zoom: 1, x: 0, y: 0, width: 0, height: 0, selected: null, highlighted: null, images: !labeled };

  function place({ x, y }) {
    const room = Math.min((view.width - 2 * MARGIN) / (right - left || 1), (view.height - 2 * MARGIN) / (high - low || 1));
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
    context.scale(sharp, sharp);
    const small = clamp(view.width / 700, 0.6, 1) * Math.sqrt(view.zoom);
    const r = clamp(5.5 - points.length / 1000, 3, 5) * small;
    const side = 24 * small;
    const { tile, columns } = layout;
    context.lineWidth = view.images ? 2 : 0.75;
    for (const point of points.filter((one) => one.group.on)) {
      const [x, y] = place(point);
      context.globalAlpha = view.highlighted && view.highlighted !== point.group ? 0.1 : 0.9;
      context.strokeStyle = view.images ? point.group.color : "rgba(20, 24, 30, 0.55)";
      if (view.images) {
        const from = [(point.tile % columns) * tile, Math.floor(point.tile / columns) * tile];
        context.drawImage(sheet, ...from, tile, tile, x - side / 2, y - side / 2, side, side);
        if (labeled) context.strokeRect(x - side / 2, y - side / 2, side, side);
      } else {
        context.fillStyle = point.group.color;
        tracePath(context, point.group.shape, x, y, r);
        context.fill();
        context.stroke();
      }
    }
    if (!view.selected) return;
    context.globalAlpha = 1;
    context.lineWidth = 2.5;
    context.strokeStyle = getComputedStyle(canvas).color;
    context.beginPath();
    context.arc(...place(view.selected), (view.images ? side * 0.72 : r + 4), 0, 2 * Math.PI);
    context.stroke();
  }

  function select(point) {
    if (point !== view.selected) {
      view.selected = point;
      redraw();
    }
    if (!point) return hideTip();
    const [x, y] = place(point);
    const box = canvas.getBoundingClientRect();
    const lines = [point.name, point.label ?? null];
    showTip(box.left + x, box.top + y, lines, cropTile(sheet, layout, point.tile, ""));
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
    select(null);
    redraw();
  }

  function pointAt(event, reach) {
    const box = canvas.getBoundingClientRect();
    select(closest(event.clientX - box.left, event.clientY - box.top, reach));
  }

  let dragStart = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") pointAt(event, 2 * POINTER_RADIUS);
    else dragStart = [event.clientX - view.x, event.clientY - view.y];
  });
  canvas.addEventListener("pointermove", (event) => {
    if (dragStart && event.buttons && view.zoom > 1) {
      [view.x, view.y] = [event.clientX - dragStart[0], event.clientY - dragStart[1]];
      return select(null), redraw();
    }
    pointAt(event, POINTER_RADIUS);
  });
  canvas.addEventListener("pointerup", () => (dragStart = null));
  canvas.addEventListener("pointerleave", (event) => {
    dragStart = null;
    if (event.pointerType !== "touch") select(null);
  });
  canvas.addEventListener("blur", () => select(null));
  // a plain wheel scrolls the page; with Ctrl, or two fingers on a pad, it zooms
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY / 200), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });

  /** The nearest visible image within 45 degrees of a direction. */
  function neighbor([dx, dy]) {
    if (!view.selected) return closest(view.width / 2, view.height / 2, Infinity);
    const [x, y] = place(view.selected);
    let [best, reach] = [view.selected, Infinity];
    for (const point of points.filter((one) => one.group.on && one !== view.selected)) {
      const [px, py] = place(point);
      const [along, aside] = [(px - x) * dx + (py - y) * dy, Math.abs((px - x) * dy + (py - y) * dx)];
      if (along > 0 && aside <= along && along + aside < reach) [best, reach] = [point, along + aside];
    }
    return best;
  }
  canvas.addEventListener("keydown", (event) => {
    const directions = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (directions[event.key]) select(neighbor(directions[event.key]));
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
  const tools = html("div", { class: "tools" }, mode, button("Zoom in", () => zoom(1.5)),
    button("Zoom out", () => zoom(1 / 1.5)), button("Full map", () => zoom(0)));
  const frame = html("div", { class: "frame" }, canvas);
  const method = layout.method === "PCA"
    ? "Reduced to two dimensions by PCA: the directions of the largest variance."
    : `Reduced to two dimensions by ${layout.method ?? "t-SNE"}, which preserves neighborhoods; distances between groups mean little.`;
  const advice = labeled
    ? "With good features, dots of one color are close together, although training used no labels."
    : "Without labels, check whether neighboring images show similar things.";
  host.append(html("p", { class: "small" }, `${method} ${advice}`));
  const main = html("div", {}, tools, frame);
  host.append(html("div", { class: labeled ? "atlas" : "" }, main, labeled ? buildLegend(groups, view, redraw) : null));
  onWidth(frame, (width) => {
    view.width = width;
    view.height = Math.round(clamp(width * 0.8, 280, 600));
    canvas.style.height = `${view.height}px`;
    redraw();
  });
}
