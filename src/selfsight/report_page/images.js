/** Crop one tile from a sheet, at its original resolution; CSS sets its size. */
function cropTile(sheet, layout, index, name) {
  const { tile, columns } = layout;
  const canvas = html("canvas", { width: tile, height: tile, role: "img", "aria-label": name });
  const from = [(index % columns) * tile, Math.floor(index / columns) * tile];
  canvas.getContext("2d").drawImage(sheet, ...from, tile, tile, 0, 0, tile, tile);
  return canvas;
}

/** Decode a sheet, then show it; a missing or broken one is replaced by a sentence. */
function withSheet(host, layout, absent, callback) {
  const list = layout && (layout.points || layout.rows);
  if (!list || !list.length) return host.append(missing(absent));
  const sheet = new Image();
  sheet.onload = () => showSection(host, () => callback(sheet));
  sheet.onerror = () => host.append(missing("The sheet of images in the run folder could not be read."));
  sheet.src = layout.sheet;
}

/** A tile that is shown enlarged, with lines of text, when pointed at or focused. */
function tileFigure(sheet, layout, index, lines, ...captions) {
  const image = cropTile(sheet, layout, index, lines.filter(Boolean).join(", "));
  const figure = html("figure", { class: "tile", tabindex: "-1" }, image);
  for (const caption of captions) figure.append(html("figcaption", {}, caption));
  const enlarge = () => {
    const box = image.getBoundingClientRect();
    showTip(box.right, box.top + box.height / 2, lines, cropTile(sheet, layout, index, ""));
  };
  figure.addEventListener("pointerenter", enlarge);
  figure.addEventListener("focus", enlarge);
  figure.addEventListener("pointerleave", hideTip);
  figure.addEventListener("blur", hideTip);
  return figure;
}

/** Tab moves from row to row, arrows from tile to tile. */
function addArrowKeys(row) {
  const tiles = [...row.querySelectorAll(".tile")];
  tiles[0].tabIndex = 0;
  row.addEventListener("keydown", (event) => {
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const next = tiles[tiles.indexOf(document.activeElement) + direction];
    if (!direction || !next) return;
    event.preventDefault();
    next.focus();
  });
  return row;
}

function showViews(host, layout) {
  withSheet(host, layout, "No views were saved for this run. They are written when training starts.", (sheet) => {
    const grid = html("div", { class: "sets" });
    layout.rows.forEach((row, r) => {
      const tiles = html("div", { class: "tiles" });
      for (let c = 0; c < layout.columns; c++) {
        const title = String(layout.titles?.[c] ?? (c ? `view ${c}` : "image"));
        tiles.append(tileFigure(sheet, layout, r * layout.columns + c, [title, row.name], title));
      }
      grid.append(addArrowKeys(html("div", { class: "set" }, tiles, html("p", { class: "name" }, row.name))));
    });
    host.append(grid);
  });
}

/** The neighbors of one image as tiles, with how many have its label. */
function neighborTiles(sheet, layout, row, first, neighbors) {
  const known = row.label !== null && row.label !== undefined;
  let same = 0;
  const tiles = html("div", { class: "tiles" });
  neighbors.forEach((other, n) => {
    const alike = known && other.label === row.label;
    const relation = !known ? null : alike ? "same label" : "another label";
    const lines = [other.name, other.label, relation, `similarity ${formatNumber(other.similarity)}`];
    const near = typeof other.similarity === "number" ? other.similarity.toFixed(2) : "–";
    const file = String(other.name).split("/").pop();
    const tile = tileFigure(sheet, layout, first + n, lines,
      `${alike ? "✓ " : ""}${near}`, ...(known ? [other.label ?? "–"] : []), file);
    tile.classList.add(alike ? "same" : "other");
    tiles.append(tile);
    same += alike;
  });
  return { tiles, same, all: known ? neighbors.length : 0 };
}

function showNeighbors(host, layout) {
  const absent = "No neighbors were saved for this run. They are written when training ends.";
  withSheet(host, layout, absent, (sheet) => {
    const sides = [["neighbors", "after training"], ["untrained", `before, by the ${report.before}`]];
    const counts = sides.map(() => ({ same: 0, all: 0 }));
    const rows = layout.rows.map((row, r) => {
      const start = r * layout.columns;
      const query = tileFigure(sheet, layout, start, [row.name, row.label], row.label ?? "image");
      query.classList.add("query");
      const line = html("div", { class: "row" }, query);
      let first = start + 1;
      sides.forEach(([key, title], s) => {
        const list = row[key] ?? [];
        if (!list.length) return;
        const { tiles, same, all } = neighborTiles(sheet, layout, row, first, list);
        first += list.length;
        counts[s].same += same;
        counts[s].all += all;
        line.append(html("div", { class: "side" }, html("p", { class: "small" }, title), tiles));
      });
      return addArrowKeys(line);
    });
    const share = ({ same, all }) => `${formatNumber(same)} of ${formatNumber(all)} neighbors (${formatPercent(same / all, 0)})`;
    const [after, before] = counts;
    const count = after.all
      ? `${share(after)} have the label of their image: green frame and ✓. The others have a gray frame.`
        + (before.all ? ` Before training: ${share(before)}.` : "")
      : "Without labels, judge by eye: do the neighbors show similar things?";
    host.append(html("p", { class: "count" }, count), ...rows);
  });
}
