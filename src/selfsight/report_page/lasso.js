/** Whether a point is inside a polygon, by the even-odd rule. */
function isInside(polygon, x, y) {
  let inside = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
    const [[ax, ay], [bx, by]] = [polygon[i], polygon[j]];
    if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) inside = !inside;
  }
  return inside;
}

/**
 * Let groups be selected on a map: by lasso, by keyboard, or all that is shown.
 *
 * `changed(chosen, count)` is called with a byte for each point, or null for none.
 */
function addSelection(map, changed) {
  const { view } = map;
  const size = view.visible.length;
  let [path, mode, on] = [null, "replace", false];

  function choose(test, how = "replace") {
    const chosen = view.chosen && how !== "replace" ? view.chosen : new Uint8Array(size);
    for (let i = 0; i < size; i++) if (test(i)) chosen[i] = how === "remove" ? 0 : 1;
    const count = chosen.reduce((sum, one) => sum + one, 0);
    view.chosen = count ? chosen : null;
    map.repaint();
    changed(view.chosen, count);
  }

  function closeLasso() {
    const at = map.placing();
    const polygon = path;
    const [xs, ys] = [polygon.map(([px]) => px), polygon.map(([, py]) => py)];
    const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    choose((i) => {
      if (!view.visible[i]) return false;
      const [px, py] = map.place(i, at);
      return px >= left && px <= right && py >= top && py <= bottom && isInside(polygon, px, py);
    }, mode);
  }

  view.drag = (event, positions) => {
    if (event.type === "pointerdown") {
      if (event.button || !(on || event.shiftKey)) return false;
      path = positions;
      mode = event.shiftKey ? "add" : event.altKey ? "remove" : "replace";
      return true;
    }
    if (!path) return false;
    if (event.type === "pointermove") path.push(...positions);
    else {
      if (event.type === "pointerup" && path.length > 2) closeLasso();
      path = null;
    }
    map.redraw(true);
    return true;
  };

  view.drawOver = (context) => {
    if (!path) return;
    const ink = getComputedStyle(map.canvas).color;
    context.beginPath();
    for (const position of path) context.lineTo(...position);
    context.closePath();
    Object.assign(context, { globalAlpha: 0.1, fillStyle: ink, strokeStyle: ink, lineWidth: 1.5 });
    context.fill();
    context.globalAlpha = 0.9;
    context.setLineDash([6, 4]);
    context.stroke();
    context.setLineDash([]);
  };

  const lasso = button("Lasso", () => {
    on = !on;
    lasso.setAttribute("aria-pressed", on);
  });
  lasso.setAttribute("aria-pressed", on);
  map.tools.append(lasso);

  view.onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    if (event.key === "l") lasso.click();
    else if (event.key === "a") choose((i) => view.visible[i], "add");
    else if (event.key === " " && view.pointed >= 0) {
      choose((i) => i === view.pointed, view.chosen?.[view.pointed] ? "remove" : "add");
    } else return false;
    return true;
  };

  return {
    all: () => choose((i) => view.visible[i]),
    none: () => choose(() => false),
    invert: () => {
      const before = view.chosen;
      choose((i) => view.visible[i] && !before?.[i]);
    },
  };
}
