const STATES = {
  learning: ["✓", "Learning"],
  collapsed: ["✕", "Collapsed"],
  unclear: ["?", "Unclear"],
  diverged: ["✕", "Diverged"],
  running: ["…", "Not finished"],
};

function body(id) {
  return document.querySelector(`#${id} .body`);
}

function showHead() {
  document.getElementById("title").textContent = report.title;
  const { recipe, seconds } = report;
  const facts = [recipe.method?.name, recipe.backbone?.name, recipe.data?.path];
  if (recipe.epochs) facts.push(`${formatNumber(recipe.epochs)} epochs`);
  if (recipe.batch_size) facts.push(`${formatNumber(recipe.batch_size)} images per step`);
  if (seconds !== null) facts.push(duration(seconds));
  const known = facts.filter((fact) => fact !== null && fact !== undefined);
  document.getElementById("facts").append(...known.map((fact) => html("span", {}, String(fact))));
}

function showVerdict(host) {
  const { verdict, sentence, evidence } = report.verdict;
  const [sign, word] = STATES[verdict] ?? ["?", verdict];
  const card = html("div", { class: `verdict ${STATES[verdict] ? verdict : "unclear"}` },
    html("p", { class: "state" }, html("span", { "aria-hidden": "true" }, sign), word),
    html("p", { class: "sentence" }, sentence));
  host.append(card);
  if (!evidence.length) {
    const later = verdict === "running" ? "The evidence is judged when the run ends; until then, look at the curves."
      : verdict === "diverged" ? "The run ended before anything was judged."
      : "This verdict has no evidence.";
    return host.append(missing(later));
  }
  const heads = ["Evidence", "Value", "Expected", "Meaning"];
  const rows = evidence.map((row) => html("tr", {}, html("th", { scope: "row" }, formatNumber(row.name)),
    ...["value", "expected", "meaning"].map((key, i) => html("td", { "data-head": heads[i + 1] }, formatNumber(row[key])))));
  host.append(html("table", { class: "evidence" },
    html("thead", {}, html("tr", {}, ...heads.map((head) => html("th", { scope: "col" }, head)))),
    html("tbody", {}, ...rows)));
}

function points(difference) {
  const size = toFixed(Math.abs(100 * difference), 1);
  return `${difference < 0 && size !== "0.0" ? "−" : "+"}${size}`;
}

/** The gain over what training started from, in a sentence. */
function gain() {
  const value = (key) => report.bars.find((bar) => bar.key === key)?.value;
  for (const [key, name] of [["knn", "kNN"], ["linear", "linear-probe"], ["online_knn", "online_knn"]]) {
    const [after, before] = [value(`${key}_accuracy`), value(`${key}_untrained_accuracy`)];
    if (after === undefined || before === undefined) continue;
    const pair = report.results[key]?.differences?.untrained?.accuracy;
    const interval = pair ? ` (95 % interval ${points(pair.low)} to ${points(pair.high)})` : "";
    if (pair && pair.low <= 0 && pair.high >= 0) {
      return `By ${name} accuracy, the trained encoder and the ${report.before} are indistinguishable on these `
        + `${formatNumber(pair.n)} images: ${formatPercent(after)} and ${formatPercent(before)}${interval}.`;
    }
    const [verb, more] = after >= before ? ["raised", "above"] : ["lowered", "below"];
    return `Training ${verb} ${name} accuracy from ${formatPercent(before)} to ${formatPercent(after)}: `
      + `${toFixed(100 * Math.abs(after - before), 1)} points ${more} the ${report.before}${interval}.`;
  }
  return null;
}

/** A number, and its interval in small print. */
function withEnds({ value, low, high }, unit) {
  const end = (one) => (unit === "percent" ? (100 * one).toFixed(1) : formatNumber(one));
  return [formatValue(value, unit), low === null || high === null ? null : html("small", {}, `[${end(low)}, ${end(high)}]`)];
}

function gainText(gain, unit) {
  if (gain === null) return "";
  const end = (one) => (unit === "percent" ? points(one) : `${one < 0 ? "−" : "+"}${formatNumber(Math.abs(one))}`);
  return `${end(gain.difference)} [${end(gain.low)}, ${end(gain.high)}], ${formatNumber(gain.n)} images`;
}

/** How far the encoder is from each other one, in a list of sentences. */
function showDifferences(rows) {
  const lines = rows.map(({ file, other, difference, low, high, n }) => {
    const ends = `95 % interval ${points(low)} to ${points(high)}, ${formatNumber(n)} images`;
    const apart = low > 0 || high < 0;
    return html("li", {}, html("b", {}, `${file}: `), apart
      ? `${toFixed(100 * Math.abs(difference), 1)} points ${difference > 0 ? "above" : "below"} ${other} (${ends}).`
      : `indistinguishable from ${other} on these images (${points(difference)} points, ${ends}).`);
  });
  return html("ul", { class: "differences small", "aria-label": "Differences" }, ...lines);
}

function showFigures(host) {
  const { bars, label_free: free } = report;
  if (!bars.length && !free.length) {
    host.append(missing("Nothing has been evaluated yet. With labeled images, run the `selfsight evaluate` "
      + `command at the end of this page; without labels it still compares with the ${report.before}.`));
  }
  if (gain()) host.append(html("p", { class: "gain" }, gain()));
  if (bars.length) {
    const list = html("ul", { class: "bars", "aria-label": "Accuracies" });
    for (const bar of bars) {
      list.append(html("li", { class: bar.ours ? "ours" : "" },
        html("span", { class: "what" }, bar.name, html("small", {}, bar.meaning)),
        intervalBar(bar), intervalText(bar)));
    }
    host.append(html("p", { class: "small" }, "Share of test images with the right label, or what the line says; longer is better. "
      + "Lines and brackets are 95 % intervals: how much the number varies with other test images, not with other seeds. "
      + "Labels are used only for evaluation, never in training."), list);
    if (report.differences.length) host.append(showDifferences(report.differences));
  }
  if (free.length) {
    const before = report.before[0].toUpperCase() + report.before.slice(1);
    const rows = free.map((row) => {
      // Without an interval, or with one that contains 0, neither is called better.
      const apart = row.gain !== null && (row.gain.low > 0 || row.gain.high < 0);
      const better = !apart || row.compare ? null : (row.better === "higher") === (row.gain.difference > 0);
      const unclear = row.gain === null ? "not compared" : "no clear difference";
      const mark = row.compare ?? (better === null ? unclear : better ? "✓ better" : "✕ worse");
      return html("tr", {}, html("th", { scope: "row" }, row.name, html("small", {}, `${row.meaning}; ${row.better} is better`)),
        html("td", { "data-head": "After training" }, ...withEnds(row.trained, row.unit)),
        html("td", { "data-head": before }, ...withEnds(row.untrained, row.unit)),
        html("td", { "data-head": "Compared", class: better === null ? "" : better ? "good" : "poor" }, mark,
          html("small", {}, gainText(row.gain, row.unit))));
    });
    const heads = ["Measure without labels", "After training", before, "Compared"];
    host.append(html("table", { class: "evidence free" },
      html("thead", {}, html("tr", {}, ...heads.map((head) => html("th", { scope: "col" }, head)))),
      html("tbody", {}, ...rows)));
  }
  if (Object.keys(report.results).length) {
    host.append(html("details", {}, html("summary", {}, "Every result and its settings"), nested(report.results, {})));
  }
}

/** A nested value as one table: indented keys, values, and reasons if there are any. */
function nested(value, reasons) {
  const rows = [];
  const used = new Set();
  const plain = (inner) => inner === null || typeof inner !== "object" || !Object.keys(inner).length
    || (Array.isArray(inner) && inner.every((one) => one === null || typeof one !== "object"));
  const line = (key, depth, text, reason) => {
    const row = html("tr", { class: text === null ? "branch" : "" }, html("th", { scope: "row" }, key),
      html("td", { class: "value" }, text ?? ""), html("td", { class: "reason" }, reason ?? ""));
    row.style.setProperty("--depth", depth);
    rows.push(row);
  };
  const walk = (branch, path, depth) => {
    for (const [key, inner] of Object.entries(branch)) {
      const here = path ? `${path}.${key}` : key;
      if (Object.hasOwn(reasons, here)) used.add(here);
      const reason = used.has(here) ? String(reasons[here]) : null;
      const name = Array.isArray(branch) ? `${Number(key) + 1}` : key;
      if (plain(inner)) {
        const text = Array.isArray(inner) ? inner.map((one) => one ?? "none").join(", ") || "none" : inner;
        line(name, depth, typeof text === "object" ? "none" : String(text), reason);
      } else {
        line(name, depth, null, reason);
        walk(inner, here, depth + 1);
      }
    }
  };
  walk(value, "", 0);
  for (const key of Object.keys(reasons)) if (!used.has(key)) line(key, 0, "", String(reasons[key]));
  const why = Object.keys(reasons).length > 0;
  const heads = why ? ["Setting", "Value", "Why"] : ["Name", "Value"];
  return html("table", { class: why ? "nested" : "nested plain" },
    html("thead", {}, html("tr", {}, ...heads.map((head) => html("th", { scope: "col" }, head)))),
    html("tbody", {}, ...rows));
}

function showRecipe(host) {
  const { recipe, changed, left_out, reasons, versions, commands } = report;
  if (!Object.keys(recipe).length) host.append(missing("recipe.json is empty."));
  else if (!Object.keys(changed).length) host.append(nested(recipe, reasons));
  else {
    host.append(nested(changed, reasons),
      html("details", {}, html("summary", {}, "All settings, also those with their default"), nested(recipe, {})));
  }
  const lost = Object.entries(left_out);
  if (lost.length) {
    const more = recipe.skipped > lost.length ? `, of which ${formatNumber(lost.length)} are listed` : "";
    host.append(html("h3", {}, `Left out: ${formatNumber(recipe.skipped ?? lost.length)} unreadable images${more}`),
      html("details", {}, html("summary", {}, "Their names and the reasons"), nested(left_out, {})));
  }
  if (Object.keys(versions).length) host.append(html("h3", {}, "Versions"), nested(versions, {}));
  host.append(html("h3", {}, "Next steps"));
  for (const { title, code } of commands) {
    const block = html("code", {}, code);
    const copyButton = button("Copy", async () => {
      copyButton.textContent = (await copy(code, block)) ? "Copied" : "Press Ctrl+C";
      setTimeout(() => (copyButton.textContent = "Copy"), 1500);
    });
    copyButton.setAttribute("aria-label", `Copy: ${title}`);
    const command = html("div", { class: "command" }, html("pre", { tabindex: "0" }, block), copyButton);
    host.append(html("p", { class: "says" }, title), command);
  }
}

for (const [id, part] of [
  ["verdict", showHead],
  ["verdict", showVerdict],
  ["figures", showFigures],
  ["classes", (host) => showClasses(host, report.classes)],
  ["curves", (host) => showCurves(host, report.curves)],
  ["features", (host) => showFeatures(host, report.features)],
  ["views", (host) => showViews(host, report.sheets.views)],
  ["map", (host) => showMap(host, report.sheets.map)],
  ["neighbors", (host) => showNeighbors(host, report.sheets.neighbors)],
  ...(body("query") ? [["query", showQuery]] : []),
  ["recipe", showRecipe],
]) {
  showSection(body(id), () => part(body(id)));
}
