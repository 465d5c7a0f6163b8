/** A place to drop an image on: the served page shows the stored images most similar to it. */
function showQuery(host) {
  const input = html("input", { type: "file", accept: "image/*,.npy,.tif,.tiff", id: "query-file" });
  const answer = html("div", { class: "answer", role: "status" });
  const place = html("label", { class: "drop", for: "query-file" }, "Drop an image here, or choose a file: ", input);
  let last = 0;

  async function ask(file) {
    const turn = ++last;
    answer.replaceChildren(html("p", { class: "small" }, `Comparing ${file.name} …`));
    let found;
    try {
      const response = await fetch("/query", { method: "POST", body: file });
      found = await response.json();
    } catch {
      found = { error: "The server does not answer: it may have been stopped." };
    }
    if (turn !== last) return; // a later image was asked for
    if (found.error) return answer.replaceChildren(missing(found.error));
    const imageFigure = (url, ...captions) => html("figure", { class: "tile" }, html("img", { src: url, alt: captions.join(", ") }),
      ...captions.map((caption) => html("figcaption", {}, caption)));
    const query = imageFigure(found.query, file.name);
    query.classList.add("query");
    const tiles = found.neighbors.map(({ name, label, similarity, image }) => {
      const tile = imageFigure(image, similarity.toFixed(2), ...(label === null ? [] : [label]), name.split("/").pop());
      tile.title = name;
      return tile;
    });
    answer.replaceChildren(
      html("p", { class: "small" }, `The most similar of ${formatNumber(found.images)} images of the run, by the cosine of their features.`),
      html("div", { class: "row" }, query, html("div", { class: "side" }, html("div", { class: "tiles" }, ...tiles))));
  }

  input.addEventListener("change", () => input.files[0] && ask(input.files[0]));
  for (const event of ["dragover", "drop"]) addEventListener(event, (one) => one.preventDefault());
  addEventListener("drop", (event) => event.dataTransfer.files[0] && ask(event.dataTransfer.files[0]));
  host.append(place, answer);
}
