const MAX_NAMED = 30; // classes whose names are written beside the matrix
const MIXED_UP = 8; // pairs of classes that are listed

/** The ends of an interval, or nothing. */
function formatEnds({ low, high }) {
  if (low === null || high === null || low === undefined) return "";
  return `(${toFixed(100 * low, 1)}\u2009–\u2009${toFixed(100 * high, 1)})`;
}

/** An accuracy and its interval, in small type. */
function intervalText(number) {
  return html("b", {}, formatPercent(number.value), html("small", {}, ` ${formatEnds(number)}`));
}

/** A bar from 0 to 100 % with a whisker for its interval. */
function intervalBar({ value, low, high }) {
  const fillBar = html("i", {});
  fillBar.style.width = `${clamp(100 * value, 0, 100)}%`;
  const track = html("span", { class: "track", "aria-hidden": "true" }, fillBar);
  if (low !== null && high !== null && low !== undefined) {
    const whisker = html("em", {});
    whisker.style.left = `${100 * low}%`;
    whisker.style.width = `${Math.max(0, 100 * (high - low))}%`;
    track.append(whisker);
  }
  return track;
}

function classBars(rows) {
  const list = html("ul", { class: "bars classes", "aria-label": "Accuracy of each class" });
  for (const row of rows) {
    list.append(html("li", {},
      html("span", { class: "what" }, row.name, html("small", {}, `${formatNumber(row.n)} images`)),
      intervalBar(row), intervalText(row)));
  }
  return list;
}

/** Rows are classes and columns predictions; a cell is the share of the row. */
function confusionMatrix({ labels, confusion }) {
  const count = labels.length;
  const sums = confusion.map((row) => row.reduce((sum, value) => sum + value, 0));
  const area = html("div", { class: "matrix", role: "img",
    "aria-label": `Confusion matrix of ${count} classes; the pairs that are mixed up most are listed` });
  const named = count <= MAX_NAMED;
  const longest = Math.min(14, Math.max(...labels.map((label) => label.length)));
  const margin = named ? 10 + 7 * longest : 4;
  onWidth(area, (width) => {
    const cell = Math.min(34, (Math.min(width, 720) - margin - 4) / count);
    const side = cell * count;
    const cells = svg("g", { transform: `translate(${margin} ${margin})` },
      svg("rect", { class: "frame", width: side, height: side }));
    confusion.forEach((row, i) => row.forEach((value, j) => {
      if (!value) return;
      cells.append(svg("rect", { class: i === j ? "right" : "wrong", x: j * cell, y: i * cell, width: cell, height: cell,
        opacity: (0.08 + 0.92 * (value / sums[i])).toFixed(3) }));
    }));
    const short = (label) => (label.length > 14 ? `${label.slice(0, 13)}…` : label);
    const size = Math.min(12, cell - 1);
    for (const [i, label] of named ? labels.entries() : []) {
      const at = (i + 0.5) * cell;
      cells.append(
        svg("text", { x: -6, y: at + 4, "text-anchor": "end", "font-size": size }, short(label)),
        svg("text", { "font-size": size, transform: `translate(${at + 4} -6) rotate(-90)` }, short(label)));
    }
    const image = svg("svg", { width: side + margin + 2, height: side + margin + 2, "aria-hidden": "true" }, cells);
    image.addEventListener("pointermove", (event) => {
      const box = image.getBoundingClientRect();
      const [j, i] = [event.clientX - box.left, event.clientY - box.top].map((at) => Math.floor((at - margin) / cell));
      if (!(labels[i] !== undefined && labels[j] !== undefined)) return hideTip();
      showTip(event.clientX, event.clientY, [`${labels[i]} → ${labels[j]}`,
        `${formatNumber(confusion[i][j])} of ${formatNumber(sums[i])} images`,
        sums[i] ? formatPercent(confusion[i][j] / sums[i]) : null]);
    });
    image.addEventListener("pointerleave", hideTip);
    area.replaceChildren(image);
  });
  return area;
}

function mixedUp({ labels, confusion }) {
  const pairs = confusion.flatMap((row, i) => row.map((value, j) => ({ i, j, value, all: row.reduce((a, b) => a + b, 0) })));
  const most = pairs.filter(({ i, j, value }) => i !== j && value).sort((a, b) => b.value - a.value).slice(0, MIXED_UP);
  if (!most.length) return html("p", { class: "small" }, "No class is mistaken for another.");
  const heads = ["Class", "Predicted", "Images"];
  return html("table", { class: "evidence" },
    html("thead", {}, html("tr", {}, ...heads.map((head) => html("th", { scope: "col" }, head)))),
    html("tbody", {}, ...most.map(({ i, j, value, all }) => html("tr", {}, html("th", { scope: "row" }, labels[i]),
      html("td", { "data-head": heads[1] }, labels[j]),
      html("td", { "data-head": heads[2] }, `${formatNumber(value)} of ${formatNumber(all)} (${formatPercent(value / all)})`)))));
}

function showClasses(host, results) {
  if (!results.length) {
    return host.append(missing("No classes yet: evaluate the run on labeled images with the command at the end of this page."));
  }
  const detail = html("div", {});
  const buttons = results.map((result) => button(result.name, () => select(result)));
  function select(result) {
    buttons.forEach((one, i) => one.setAttribute("aria-pressed", String(results[i] === result)));
    const balanced = result.balanced ? ` Balanced accuracy, the mean over classes: ${formatPercent(result.balanced.value)} ${formatEnds(result.balanced)}.` : "";
    const parts = [html("p", { class: "small" }, `${formatNumber(result.rows.length)} classes, the worst first.${balanced} `
      + "Lines and brackets are 95 % intervals."), classBars(result.rows)];
    if (result.confusion) {
      parts.push(html("h3", {}, "Confusion matrix"), html("p", { class: "small" }, "A row is a class and a column a prediction; "
        + "the diagonal is right. Point at a cell to see its images."), confusionMatrix(result), mixedUp(result));
    }
    detail.replaceChildren(...parts);
  }
  if (results.length > 1) host.append(html("div", { class: "tools" }, ...buttons));
  host.append(detail);
  select(results[0]);
}
