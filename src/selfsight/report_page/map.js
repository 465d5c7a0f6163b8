const MARGIN = 26; // pixels around the map
const POINTER_RADIUS = 14; // largest distance in pixels between the pointer and the dot it selects
const DIM = [138, 146, 156, 26]; // color and alpha of dots that are not meant: many add up to gray

/**
 * A map of points that is panned, zoomed, pointed at and walked by keyboard.
 *
 * `about(i)` gives the lines of a point, `thumbnail(i)` a canvas with its image, and `drawThumbnail`
 * draws it at a place. With `wheel` a plain wheel zooms and a finger moves the map; otherwise both
 * scroll the page. `view.drag`, if set, gets the positions of the pointer, and
 * takes it for itself while it returns true.
 */
function createMap({ x, y, about, thumbnail, drawThumbnail, coloring, images = false, wheel = false, maxZoom = 40, height }) {
  const count = x.length;
  const canvas = html("canvas", {
    class: "map", tabindex: "0", role: "application",
    "aria-label": `Map of ${formatNumber(count)} images. Arrow keys go from image to image, + and − zoom.`,
  });
  const context = canvas.getContext("2d");
  const dots = createDots(x, y);
  const frame = html("div", { class: "frame" }, dots.canvas, canvas);
  const span = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  const [[left, right], [low, high]] = [span(x), span(y)];
  const view = {
    zoom: 1, x: 0, y: 0, width: 0, height: 0, pointed: -1, highlighted: null, images, coloring,
    visible: new Uint8Array(count).fill(1), chosen: null, drawOver: null, drag: null, onKey: null,
  };
  let [dirty, waiting] = [true, false];

  function placing() {
    const room = Math.min((view.width - 2 * MARGIN) / (right - left || 1), (view.height - 2 * MARGIN) / (high - low || 1));
    const scale = room * view.zoom;
    return {
      scale,
      left: view.width / 2 + view.x - ((left + right) / 2) * scale,
      top: view.height / 2 + view.y + ((low + high) / 2) * scale,
    };
  }

  function place(i, at = placing()) {
    return [at.left + x[i] * at.scale, at.top - y[i] * at.scale];
  }

  function sizes() {
    const small = clamp(view.width / 700, 0.6, 1) * Math.sqrt(view.zoom);
    const r = count > 3000 ? clamp(220 / Math.sqrt(count), 0.8, 3) : clamp(5.5 - count / 1000, 3, 5);
    return { radius: Math.min(r * small, 9), side: Math.min(24 * small, 96) };
  }

  /** Set the color of every dot: by group or value, dim if others are highlighted or chosen. */
  function repaint() {
    const [colors, shapes] = [new Uint8Array(4 * count), new Uint8Array(count)];
    for (let i = 0; i < count; i++) {
      const group = view.coloring.group(i);
      view.visible[i] = group.on ? 1 : 0;
      shapes[i] = group.shape;
      if (!group.on) continue;
      const dim = view.highlighted ? view.highlighted !== group : view.chosen && !view.chosen[i];
      const ink = dim ? DIM : (group.ink ?? view.coloring.ink(i));
      for (let c = 0; c < 3; c++) colors[4 * i + c] = ink[c];
      colors[4 * i + 3] = dim ? DIM[3] : 230;
    }
    dots.paint(colors, shapes);
    redraw();
  }

  function redraw(onlyOver = false) {
    dirty ||= !onlyOver;
    if (waiting || !view.width) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      const at = placing();
      if (dirty || view.images) drawPoints(at);
      dirty = false;
      drawOver(at);
    });
  }

  function drawPoints(at) {
    if (view.images) dots.clear();
    else dots.draw({ ...at, width: view.width, height: view.height, radius: sizes().radius });
  }

  function drawOver(at) {
    const sharp = devicePixelRatio || 1;
    const { radius, side } = sizes();
    canvas.width = view.width * sharp;
    canvas.height = view.height * sharp;
    context.scale(sharp, sharp);
    if (view.images) drawImages(at, side);
    view.drawOver?.(context, at);
    if (view.pointed < 0) return;
    context.globalAlpha = 1;
    context.lineWidth = 2.5;
    context.strokeStyle = getComputedStyle(canvas).color;
    context.beginPath();
    context.arc(...place(view.pointed, at), (view.images ? side * 0.72 : radius + 4), 0, 2 * Math.PI);
    context.stroke();
  }

  /** Draw thumbnails, of those that would cover each other only one. */
  function drawImages(at, side) {
    const taken = new Set();
    context.lineWidth = 2;
    for (let i = 0; i < count; i++) {
      const [px, py] = place(i, at);
      if (!view.visible[i] || px < -side || py < -side || px > view.width + side || py > view.height + side) continue;
      const cell = Math.floor((2 * px) / side) * 100000 + Math.floor((2 * py) / side);
      if (taken.has(cell)) continue;
      taken.add(cell);
      const group = view.coloring.group(i);
      context.globalAlpha = (view.highlighted && view.highlighted !== group) || (view.chosen && !view.chosen[i]) ? 0.1 : 0.9;
      drawThumbnail(context, i, px - side / 2, py - side / 2, side);
      if (view.coloring.groups?.length === 1) continue;
      const [r, g, b] = group.ink ?? view.coloring.ink(i);
      context.strokeStyle = `rgb(${r},${g},${b})`;
      context.strokeRect(px - side / 2, py - side / 2, side, side);
    }
  }

  function pointTo(i) {
    if (i !== view.pointed) {
      view.pointed = i;
      redraw(true);
    }
    if (i < 0) return hideTip();
    const [px, py] = place(i);
    const box = canvas.getBoundingClientRect();
    showTip(box.left + px, box.top + py, about(i), thumbnail(i));
  }

  function closest(px, py, reach) {
    const at = placing();
    let best = -1;
    for (let i = 0; i < count; i++) {
      if (!view.visible[i]) continue;
      const distance = Math.hypot(at.left + x[i] * at.scale - px, at.top - y[i] * at.scale - py);
      if (distance < reach) [best, reach] = [i, distance];
    }
    return best;
  }

  function zoom(factor, px = view.width / 2, py = view.height / 2) {
    const next = clamp(view.zoom * factor, 1, maxZoom);
    const ratio = next / view.zoom;
    view.x = next === 1 ? 0 : (view.x - (px - view.width / 2)) * ratio + (px - view.width / 2);
    view.y = next === 1 ? 0 : (view.y - (py - view.height / 2)) * ratio + (py - view.height / 2);
    view.zoom = next;
    pointTo(-1);
    redraw();
  }

  function positionOf(event) {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  // a busy browser merges moves of the pointer into one event
  function positionsOf(event) {
    const merged = event.getCoalescedEvents?.() ?? [];
    return (merged.length ? merged : [event]).map(positionOf);
  }

  let dragStart = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (view.drag?.(event, positionsOf(event))) return canvas.setPointerCapture(event.pointerId);
    if (event.pointerType === "touch") pointTo(closest(...positionOf(event), 2 * POINTER_RADIUS));
    // elsewhere a finger scrolls the page
    if (event.pointerType !== "touch" || wheel) dragStart = [event.clientX - view.x, event.clientY - view.y];
  });
  canvas.addEventListener("pointermove", (event) => {
    if (view.drag?.(event, positionsOf(event))) return pointTo(-1);
    if (dragStart && event.buttons && view.zoom > 1) {
      [view.x, view.y] = [event.clientX - dragStart[0], event.clientY - dragStart[1]];
      return pointTo(-1), redraw();
    }
    pointTo(closest(...positionOf(event), POINTER_RADIUS));
  });
  canvas.addEventListener("pointerup", (event) => {
    dragStart = null;
    view.drag?.(event, positionsOf(event));
  });
  canvas.addEventListener("pointercancel", (event) => view.drag?.(event, positionsOf(event)));
  canvas.addEventListener("pointerleave", (event) => {
    dragStart = null;
    if (event.pointerType !== "touch") pointTo(-1);
  });
  canvas.addEventListener("blur", () => pointTo(-1));
  // a plain wheel scrolls the page; with Ctrl, or two fingers on a pad, it zooms
  canvas.addEventListener("wheel", (event) => {
    if (!wheel && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / (wheel && !event.ctrlKey ? 500 : 200)), ...positionOf(event));
  }, { passive: false });

  /** The nearest visible image within 45 degrees of a direction. */
  function neighbor([dx, dy]) {
    if (view.pointed < 0) return closest(view.width / 2, view.height / 2, Infinity);
    const at = placing();
    const [px, py] = place(view.pointed, at);
    let [best, reach] = [view.pointed, Infinity];
    for (let i = 0; i < count; i++) {
      if (!view.visible[i] || i === view.pointed) continue;
      const [qx, qy] = [at.left + x[i] * at.scale - px, at.top - y[i] * at.scale - py];
      const [along, aside] = [qx * dx + qy * dy, Math.abs(qx * dy + qy * dx)];
      if (along > 0 && aside <= along && along + aside < reach) [best, reach] = [i, along + aside];
    }
    return best;
  }
  canvas.addEventListener("keydown", (event) => {
    const directions = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (directions[event.key]) pointTo(neighbor(directions[event.key]));
    else if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 1.5 : 1 / 1.5);
    else if (view.onKey?.(event)) return event.preventDefault();
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
  onWidth(frame, (width) => {
    view.width = width;
    view.height = Math.round(height?.() ?? clamp(width * 0.8, 280, 600));
    for (const layer of frame.children) layer.style.height = `${view.height}px`;
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
  return { view, frame, tools, canvas, dots, place, placing, repaint, redraw };
}

function describeLayout(method) {
  return method === "PCA"
    ? "Reduced to two dimensions by PCA: the directions of the largest variance."
    : `Reduced to two dimensions by ${method ?? "t-SNE"}, which preserves neighborhoods; distances between groups mean little.`;
}

function showMap(host, layout) {
  const absent = "No map was saved for this run. It is written when training ends.";
  withSheet(host, layout, absent, (sheet) => {
    const points = layout.points
      .map((point, tile) => ({ ...point, tile }))
      .filter((point) => typeof point.x === "number" && typeof point.y === "number");
    if (!points.length) return host.append(missing("The map has no image with a finite position."));
    const names = [...new Set(points.map((point) => point.label ?? null))].filter((name) => name !== null);
    const number = new Map(names.map((name, i) => [name, i]));
    const labeled = names.length > 0;
    const { tile, columns } = layout;
    const map = createMap({
      x: Float32Array.from(points, (point) => point.x),
      y: Float32Array.from(points, (point) => point.y),
      about: (i) => [points[i].name, points[i].label ?? null],
      thumbnail: (i) => cropTile(sheet, layout, points[i].tile, ""),
      drawThumbnail: (context, i, ...where) => context.drawImage(sheet, (points[i].tile % columns) * tile,
        Math.floor(points[i].tile / columns) * tile, tile, tile, ...where, where[2]),
      coloring: colorByGroup("label", points.map((point) => number.get(point.label ?? null) ?? -1), names),
      images: !labeled,
    });
    const advice = labeled
      ? "With good features, dots of one color are close together, although training used no labels."
      : "Without labels, check whether neighboring images show similar things.";
    host.append(html("p", { class: "small" }, `${describeLayout(layout.method)} ${advice}`));
    const main = html("div", {}, map.tools, map.frame);
    const legend = labeled ? buildLegend(map.view.coloring, map.view, map.repaint) : null;
    if (!labeled) map.repaint();
    host.append(html("div", { class: labeled ? "atlas" : "" }, main, legend));
  });
}
