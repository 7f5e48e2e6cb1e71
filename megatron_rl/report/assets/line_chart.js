// A line chart of one or several series over steps.
// line = {label, color, dash, steps, values}; options = {title, unit, log, zero, decay, resumed, limit}; a line's tag, if any, is written at its end

const HEIGHT = 196, TOP = 10, BOTTOM = 22, LEFT = 50;

function domainOf(lines, { log, zero, limit }) {
  const all = lines.flatMap((line) => line.values).filter((value) => value !== null && (!log || value > 0));
  if (!all.length) return null;
  let low = Math.min(...all), high = Math.max(...all);
  if (log) return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(Math.max(high, low * 1.001)))];
  if (limit !== null && limit !== undefined && limit <= high * 3) high = Math.max(high, limit);
  if (zero && low >= 0) low = 0;
  const pad = (high - low || Math.abs(high) || 1) * 0.06;
  return [zero && low === 0 ? 0 : low - pad, high + pad];
}

function pathOf(steps, values, x, y) {
  let path = "", pen = false;
  values.forEach((value, i) => {
    const height = value === null ? null : y(value);
    if (height === null) { pen = false; return; }
    path += `${pen ? "L" : "M"}${x(steps[i]).toFixed(1)} ${height.toFixed(1)}`;
    pen = true;
  });
  return path;
}

// Points that no line would show: few in all, or alone between two gaps.
function dotsOf(line, x, y) {
  const drawable = (i) => line.values[i] !== null && line.values[i] !== undefined && y(line.values[i]) !== null;
  const few = line.values.length <= 12;
  return line.values.flatMap((value, i) => (drawable(i) && (few || !(drawable(i - 1) || drawable(i + 1))))
    ? [painted("circle", { cx: x(line.steps[i]).toFixed(1), cy: y(value).toFixed(1), r: 2.6 }, { fill: line.color })] : []);
}

function endLabels(ends, gap = 13) {
  const sorted = [...ends].sort((a, b) => a.y - b.y);
  for (let i = 1; i < sorted.length; i += 1) sorted[i].y = Math.max(sorted[i].y, sorted[i - 1].y + gap);
  const over = sorted.length ? sorted[sorted.length - 1].y - (HEIGHT - BOTTOM) : 0;
  return sorted.map((end) => ({ ...end, y: over > 0 ? end.y - over : end.y }));
}

function shorten(text, limit = 16) {
  return text.length > limit ? `…${text.slice(1 - limit)}` : text;
}

function axes(chart, ticks, x, y, right, steps, unit, log) {
  for (const tick of ticks) {
    const height = y(tick);
    chart.append(svg("line", { class: "grid", x1: LEFT, x2: right, y1: height, y2: height }));
    const text = unit === "bytes" ? readable(tick, unit) : log ? tick.toExponential(0).replace("e+", "e") : plain(tick, 3);
    chart.append(svg("text", { x: LEFT - 6, y: height + 4, "text-anchor": "end" }, text));
  }
  chart.append(svg("line", { class: "axis", x1: LEFT, x2: right, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }));
  const [first, last] = steps;
  const stepTicks = first === last ? [first] : niceTicks(first, last, 4).filter(Number.isInteger);
  for (const tick of stepTicks) {
    chart.append(svg("text", { x: x(tick), y: HEIGHT - 6, "text-anchor": "middle" }, tick.toLocaleString("en-US")));
  }
}

function summaryOf(title, lines, unit) {
  const parts = lines.map((line) => {
    const last = line.values.findLastIndex((value) => value !== null);
    return last < 0 ? `${line.label}: no finite value` : `${line.label}: ${readable(line.values[last], unit)} at step ${line.steps[last]}`;
  });
  return `${title}. ${parts.join("; ")}. Arrow keys move along the steps.`;
}

function lineChart(drawing, output, lines, options) {
  const domain = domainOf(lines, options);
  if (!domain) { drawing.replaceChildren(html("p", { class: "note" }, "No finite value was recorded.")); return; }
  const width = Math.max(240, drawing.clientWidth || 360);
  const labelled = lines.length > 1 && lines.some((line) => line.tag);
  const longest = labelled ? Math.max(...lines.map((line) => shorten(line.tag || "").length)) : 0;
  const right = width - (labelled ? Math.min(width * 0.3, 10 + 7 * longest) : 8);
  const [low, high] = domain;
  const scale = options.log ? Math.log10 : (value) => value;
  const y = (value) => (options.log && value <= 0 ? null
    : TOP + (HEIGHT - TOP - BOTTOM) * (1 - (scale(value) - scale(low)) / (scale(high) - scale(low))));
  const steps = [Math.min(...lines.map((line) => line.steps[0])), Math.max(...lines.map((line) => line.steps[line.steps.length - 1]))];
  const x = (step) => (steps[0] === steps[1] ? (LEFT + right) / 2 : LEFT + ((step - steps[0]) / (steps[1] - steps[0])) * (right - LEFT));
  const chart = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": summaryOf(options.title, lines, options.unit) });
  axes(chart, options.log ? decadeTicks(low, high) : unitTicks(low, high, options.unit), x, y, right, steps, options.unit, options.log);
  for (const step of options.resumed || []) {
    if (step < steps[0] || step > steps[1]) continue;
    chart.append(svg("line", { class: "resume", x1: x(step - 0.5), x2: x(step - 0.5), y1: TOP, y2: HEIGHT - BOTTOM }, svg("title", {}, `resumed before step ${step}`)));
  }
  const limited = options.limit !== null && options.limit !== undefined && options.limit >= low && options.limit <= high;
  if (limited) {
    chart.append(svg("line", { class: "limit", x1: LEFT, x2: right, y1: y(options.limit), y2: y(options.limit) }));
    const above = y(options.limit) - 4;
    chart.append(svg("text", { x: LEFT + 4, y: above < TOP ? above + 16 : above }, `warns at ${plain(options.limit)}`));
  }
  chart.append(...curves(lines, x, y, options.decay));
  if (labelled) {
    const ends = lines.filter((line) => line.tag).flatMap((line) => {
      const shown = smooth(line.values, options.decay), last = shown.findLastIndex((value) => value !== null && y(value) !== null);
      return last < 0 ? [] : [{ text: shorten(line.tag), color: line.color, y: y(shown[last]) }];
    });
    for (const end of endLabels(ends)) {
      const text = painted("text", { class: "label", x: right + 6, y: end.y + 4 }, { fill: end.color });
      text.append(end.text);
      chart.append(text);
    }
  }
  drawing.replaceChildren(chart);
  attachReadout(chart, output, lines, options, x);
}

function curves(lines, x, y, decay) {
  const parts = [];
  for (const line of lines) {
    const stroke = (values, opacity, thickness) => painted("path", { d: pathOf(line.steps, values, x, y) }, {
      fill: "none", stroke: line.color, strokeWidth: thickness, strokeDasharray: line.dash, strokeLinejoin: "round", opacity,
    });
    if (decay > 0 && line.values.length > 12) parts.push(stroke(line.values, 0.28, 1), stroke(smooth(line.values, decay), 1, 2));
    else parts.push(stroke(line.values, 1, 1.8));
    parts.push(...dotsOf(line, x, y));
    line.values.forEach((value, i) => {
      if (value !== null) return;
      const at = x(line.steps[i]);
      const cross = svg("path", { class: "gap", d: `M${at - 3} ${HEIGHT - BOTTOM - 8}l6 6m0 -6l-6 6` });
      cross.append(svg("title", {}, `${line.label}: not finite at step ${line.steps[i]}`));
      parts.push(cross);
    });
  }
  return parts;
}

function attachReadout(chart, output, lines, options, x) {
  const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
  const rows = lines.map((line) => new Map(line.steps.map((step, i) => [step, line.values[i]])));
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  chart.append(cursor);
  const nearest = (position) => steps.reduce((best, step, i) => (Math.abs(x(step) - position) < Math.abs(x(steps[best]) - position) ? i : best), 0);
  followCursor(chart, steps.length, (i) => x(steps[i]), nearest, (i, position) => {
    cursor.setAttribute("x1", position);
    cursor.setAttribute("x2", position);
    cursor.setAttribute("visibility", "visible");
    const values = lines.flatMap((line, k) => (rows[k].has(steps[i]) ? [`${lines.length > 1 ? `${line.label} ` : ""}${readable(rows[k].get(steps[i]), options.unit)}`] : []));
    output.textContent = `step ${steps[i]}: ${values.join(", ")}`;
  });
}

function lineTable(lines, unit) {
  const rows = new Map();
  lines.forEach((line, k) => line.steps.forEach((step, i) => {
    if (!rows.has(step)) rows.set(step, lines.map(() => ""));
    rows.get(step)[k] = readable(line.values[i], unit);
  }));
  const body = [...rows.keys()].sort((a, b) => a - b).map((step) => [String(step), ...rows.get(step)]);
  return table(["step", ...lines.map((line) => line.label)], body);
}
