// Making elements. Text only ever goes in as text, so a model's output cannot become markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// SVG takes custom properties in style only.
function painted(tag, attributes, style) {
  const element = svg(tag, attributes);
  Object.assign(element.style, style);
  return element;
}

function swatch(color) {
  const square = html("span", { class: "swatch", "aria-hidden": "true" });
  square.style.background = color;
  return square;
}

function table(headers, rows) {
  return html(
    "table", {},
    html("thead", {}, html("tr", {}, ...headers.map((header) => html("th", { scope: "col" }, header)))),
    html("tbody", {}, ...rows.map((row) => html("tr", {}, ...row.map((cell) => html("td", {}, cell))))),
  );
}

// A panel: heading, drawing, a line that first says what is healthy and then what the cursor meets, and a table on request.
function panelFrame({ title, unit, hint, broad }, makeTable) {
  const output = html("output", { "aria-live": "polite" });
  const drawing = html("div");
  const holder = html("div", { class: "wide tall", hidden: true, tabindex: "0", role: "region", "aria-label": `${title}, table` });
  const button = html("button", { type: "button", class: "quiet", "aria-expanded": "false", "aria-label": `${title} as a table` }, "table");
  button.addEventListener("click", () => {
    holder.hidden = !holder.hidden;
    button.setAttribute("aria-expanded", String(!holder.hidden));
    holder.replaceChildren(...(holder.hidden ? [] : [makeTable()]));
  });
  const heading = html(
    "header", {}, html("h3", {}, title), html("span", { class: "unit" }, unit || ""), button,
  );
  output.textContent = hint || "";
  const element = html("div", { class: broad ? "panel broad" : "panel" }, heading, drawing, output, holder);
  return { element, drawing, output };
}

// Moves a cursor over the positions of a chart by pointer and by arrow keys.
function followCursor(chart, count, positionOf, nearest, show) {
  let at = count - 1;
  const move = (index) => { at = Math.max(0, Math.min(count - 1, index)); show(at, positionOf(at)); };
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    move(nearest(((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width));
  });
  chart.addEventListener("keydown", (event) => {
    const target = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: count - 1 }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    move(target);
  });
}
