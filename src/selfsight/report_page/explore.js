const SHOWN = 60; // thumbnails of the selection

function unpack(text, type) {
  return new type(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
}

const [xs, ys] = [unpack(report.x, Float32Array), unpack(report.y, Float32Array)];
const tiles = unpack(report.tiles, Int32Array);
const outliers = unpack(report.outliers, Float32Array);
const colorings = [
  ...report.groups.map(({ title, of, names }) => colorByGroup(title, unpack(of, Int32Array), names)),
  colorByValue("outlier score", outliers),
];

const sheets = new Map();

/** A sheet of thumbnails, decoded when it is first needed. */
function loadSheet(number) {
  if (!sheets.has(number)) {
    const sheet = new Image();
    sheet.src = `data:image/webp;base64,${document.getElementById(`sheet-${number}`).textContent}`;
    sheet.decoded = sheet.decode().then(() => map.redraw(), () => {});
    sheets.set(number, sheet);
  }
  return sheets.get(number);
}

function drawThumbnail(context, i, x, y, side) {
  if (tiles[i] < 0) return;
  const { tile, columns, per_sheet: per } = report;
  const sheet = loadSheet(Math.floor(tiles[i] / per));
  const n = tiles[i] % per;
  if (sheet.complete && sheet.naturalWidth) {
    context.drawImage(sheet, (n % columns) * tile, Math.floor(n / columns) * tile, tile, tile, x, y, side, side);
  }
}

function thumbnail(i) {
  if (tiles[i] < 0) return null;
  const { tile, per_sheet: per } = report;
  const canvas = html("canvas", { width: tile, height: tile, role: "img", "aria-label": report.names[i] });
  loadSheet(Math.floor(tiles[i] / per)).decoded.then(() => drawThumbnail(canvas.getContext("2d"), i, 0, 0, tile));
  return canvas;
}

const map = createMap({
  x: xs,
  y: ys,
  about: (i) => [report.names[i], ...colorings.map((coloring) => coloring.text(i))],
  thumbnail,
  drawThumbnail,
  coloring: colorings[0],
  wheel: true,
  maxZoom: Math.max(40, xs.length / 50),
  height: () => clamp(innerHeight * 0.72, 320, 1200),
});

function element(id) {
  return document.getElementById(id);
}

/** The lines of the list: paths of files, or names if they are not files on a disk. */
function listChosen() {
  const lines = [];
  map.view.chosen?.forEach((one, i) => {
    if (!one) return;
    const line = report.paths ? report.paths[i] : `${report.root ?? ""}${report.names[i]}`;
    if (line !== null) lines.push(line);
  });
  return lines.map((line) => `${line}\n`).join("");
}

const selection = addSelection(map, (chosen, count) => {
  element("count").textContent = count
    ? `${formatNumber(count)} of ${formatNumber(xs.length)} images selected.`
    : "Nothing is selected. Press Lasso and draw around a group, or hold Shift while you draw.";
  for (const one of document.querySelectorAll("#save button")) one.disabled = !count;
  const first = [];
  for (let i = 0; chosen && i < chosen.length && first.length < SHOWN; i++) if (chosen[i]) first.push(i);
  element("chosen").replaceChildren(...first.map((i) => {
    const tile = html("figure", { class: "tile" }, thumbnail(i) ?? report.names[i]);
    const show = () => {
      const box = tile.getBoundingClientRect();
      showTip(box.right, box.top + box.height / 2, [report.names[i], ...colorings.map((c) => c.text(i))], thumbnail(i));
    };
    tile.addEventListener("pointerenter", show);
    tile.addEventListener("pointerleave", hideTip);
    return tile;
  }), ...(count > first.length ? [html("p", { class: "small" }, `and ${formatNumber(count - first.length)} more`)] : []));
  element("list").textContent = element("lines").open ? listChosen() : "";
});

function setColoring(coloring) {
  Object.assign(map.view, { coloring, highlighted: null });
  element("legend").replaceChildren(buildLegend(coloring, map.view, map.repaint));
  map.repaint();
}

function save() {
  const name = `${report.title.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[-.]+/, "").slice(0, 60) || "images"}-selection.txt`;
  const link = html("a", { href: URL.createObjectURL(new Blob([listChosen()], { type: "text/plain" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

const copyButton = button("Copy list", async () => {
  element("lines").open = true;
  element("list").textContent = listChosen();
  copyButton.textContent = (await copy(listChosen(), element("list"))) ? "Copied" : "Press Ctrl+C";
  setTimeout(() => (copyButton.textContent = "Copy list"), 1500);
});

element("title").textContent = report.title;
element("facts").append(...[`${formatNumber(xs.length)} images`, `map by ${report.method}`].map((fact) => html("span", {}, fact)));
element("about").textContent = `${describeLayout(report.method)} ${report.about}`;
const by = html("select", { id: "by" }, ...colorings.map(({ title }, i) => html("option", { value: i }, title)));
by.addEventListener("change", () => setColoring(colorings[by.value]));
map.tools.append(html("label", {}, "Color by ", by));
element("map").append(map.tools, map.frame);
element("save").append(button("Save list", save), copyButton);
element("choose").append(button("Select all shown", selection.all), button("Invert", selection.invert), button("Clear", selection.none));
element("lines").addEventListener("toggle", () => (element("list").textContent = element("lines").open ? listChosen() : ""));
if (report.root === null && report.paths === null) {
  element("usage").textContent = "These images are not files on a disk, so the list has their names, and other commands cannot read it.";
}
setColoring(colorings[0]);
selection.none();
