"use strict";

const report = JSON.parse(document.getElementById("data").textContent);
const SVG_NAMESPACE = document.getElementById("mark").namespaceURI;
const tip = document.getElementById("tip");

// Strings become text nodes, never markup: names and labels come from unknown files.
function populate(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function html(tag, attributes = {}, ...children) {
  return populate(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return populate(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

/** Hours and minutes, or minutes and seconds; rounded first, so that there are no 60 s. */
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds);
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h} h ${m} min` : m ? `${m} min ${s} s` : `${s} s`;
}

function missing(sentence) {
  return html("p", { class: "missing" }, sentence);
}

/** Show one section; an error in one must not hide the others. */
function showSection(host, callback) {
  try {
    callback();
  } catch (error) {
    console.error(error);
    host.append(missing("This section could not be shown: the run folder has unexpected content."));
  }
}

function button(text, callback) {
  const element = html("button", { type: "button" }, text);
  element.addEventListener("click", callback);
  return element;
}

/** Copy a text, or else select the element that shows it. */
async function copy(text, code) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(code); // not allowed: select the text for Ctrl+C
    return document.execCommand("copy");
  }
}

function formatNumber(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return typeof value === "string" ? value : JSON.stringify(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return value.toLocaleString("en");
  if (size < 1e-3 || size >= 1e7) return value.toExponential(2).replace(/\.?0+e\+?/, "e");
  const digits = size >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 4 };
  return value.toLocaleString("en", digits);
}

/** Round as Python does, so that page and terminal agree: a tie, such as 6.25, goes to the even digit. */
function toFixed(value, digits) {
  const isTie = Math.abs(value * 2 ** (digits + 1)) % 2 === 1;
  const even = (2 * Math.round((value * 10 ** digits) / 2)) / 10 ** digits;
  return (isTie ? even : value).toFixed(digits);
}

function formatPercent(value, digits = 1) {
  return value === null || value === undefined ? "–" : `${toFixed(100 * value, digits)} %`;
}

function formatValue(value, unit) {
  return unit === "percent" ? formatPercent(value) : formatNumber(value);
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

/** Show lines of text next to a point of the window, below an image if there is one. */
function showTip(x, y, lines, image = null) {
  const [first, ...rest] = lines.filter((line) => line !== null && line !== undefined);
  tip.replaceChildren();
  if (image) tip.append(image);
  tip.append(html("strong", {}, first), ...rest.map((line) => html("span", {}, line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const right = x + 18 + width < innerWidth ? x + 18 : x - 18 - width;
  tip.style.left = `${clamp(right, 6, Math.max(6, innerWidth - width - 6))}px`;
  tip.style.top = `${clamp(y - height / 2, 6, Math.max(6, innerHeight - height - 6))}px`;
}

function hideTip() {
  tip.hidden = true;
}

addEventListener("scroll", hideTip, { passive: true });
addEventListener("keydown", (event) => event.key === "Escape" && hideTip());

/** Call back with the width of an element, now and whenever it changes. */
function onWidth(element, callback) {
  let last = 0;
  new ResizeObserver(() => {
    const width = Math.floor(element.clientWidth);
    if (width > 120 && width !== last) callback((last = width)); // too narrow to draw: being laid out
  }).observe(element);
}
