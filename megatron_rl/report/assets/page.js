// Puts the charts on the page and connects the controls.

const DASHES = ["none", "6 3", "2 2", "8 3 2 3"];

function curveOf(run, metric) {
  const curve = run.metrics[metric];
  return curve && curve.v.length ? { steps: curve.s || run.steps, values: curve.v } : null;
}

// One run: a colour a metric. Several: a colour a run, and a dash a metric.
function linesOf(panel, data, visible) {
  const several = data.runs.length > 1, tagged = visible.size <= 8;
  return data.runs.flatMap((run, i) => {
    const present = visible.has(i) ? panel.lines.filter(([metric]) => curveOf(run, metric)) : [];
    return present.map(([metric, name], k) => ({
      ...curveOf(run, metric),
      label: !several ? name : panel.lines.length > 1 ? `${run.label} ${name}` : run.label,
      tag: !several ? name : tagged && k === 0 ? run.label : null,
      color: `var(--c${(several ? i : k) % 8})`,
      dash: DASHES[(several ? k + Math.floor(i / 8) : k + Math.floor(k / 8)) % 4],
    }));
  });
}

// What is healthy, and with several runs which dash is which metric.
function hintOf(panel, data) {
  const most = data.runs.map((run) => panel.lines.filter(([metric]) => curveOf(run, metric))).reduce((a, b) => (b.length > a.length ? b : a), []);
  const legend = data.runs.length > 1 && most.length > 1 ? most.map(([, name], k) => `${["solid", "dashed", "dotted", "dash-dotted"][k % 4]}: ${name}`) : [];
  return [...(panel.note ? [`healthy: ${panel.note}`] : []), ...legend].join(" · ");
}

function chartPanel(panel, data, view) {
  const current = () => linesOf(panel, data, view.visible);
  const frame = panelFrame({ title: panel.title, unit: panel.unit, hint: hintOf(panel, data) }, () => lineTable(current(), panel.unit));
  const isMismatch = panel.lines.some(([metric]) => metric === "rollout_corr/logprob_diff_mean");
  const draw = () => {
    const lines = current();
    if (!lines.length) { frame.drawing.replaceChildren(html("p", { class: "note" }, "Not recorded by the runs shown.")); return; }
    lineChart(frame.drawing, frame.output, lines, {
      ...panel, decay: panel.smoothed ? view.decay : 0,
      resumed: data.runs.length === 1 ? data.runs[0].resumed : [], limit: isMismatch ? data.runs[0].threshold : null,
    });
  };
  return { element: frame.element, draw };
}

function drawPhases(data) {
  const root = document.getElementById("timeline");
  if (!root) return null;
  const select = document.querySelector('[name="timeline-run"]');
  const timed = () => data.runs[select ? Number(select.value) : 0].timeline;
  const frame = panelFrame({ title: "Time by phase", unit: "s per step", broad: true }, () => phaseTable(timed()));
  const draw = () => {
    if (timed().bins.length) phaseChart(frame.drawing, frame.output, timed(), data.phase_order);
    else frame.drawing.replaceChildren(html("p", { class: "note" }, "This run has no timed step."));
  };
  root.append(frame.element);
  if (select) select.addEventListener("input", draw);
  document.querySelectorAll("[data-phase]").forEach((cell) => cell.prepend(swatch(phaseColor(cell.dataset.phase, data.phase_order))));
  return draw;
}

function explorer(data, view) {
  const root = document.getElementById("explore");
  if (!root) return null;
  const names = [...new Set(data.runs.flatMap((run) => Object.keys(run.metrics)))].sort();
  const select = html("select", { name: "metric" }, ...names.map((name) => html("option", {}, name)));
  const panel = { title: "", unit: "", note: "", log: false, zero: false, smoothed: true, lines: [] };
  const holder = html("div");
  const draw = () => {
    Object.assign(panel, { title: select.value, lines: [[select.value, select.value]] });
    const chart = chartPanel(panel, data, view);
    holder.replaceChildren(chart.element);
    chart.draw();
  };
  select.addEventListener("input", draw);
  root.append(html("div", { class: "toolbar" }, html("label", {}, "Any metric ", select)), holder);
  return draw;
}

function runToggles(data, view, redraw) {
  const root = document.querySelector(".runs");
  if (!root) return;
  data.runs.forEach((run, i) => {
    const box = html("input", { type: "checkbox", checked: true });
    box.addEventListener("input", () => { if (box.checked) view.visible.add(i); else view.visible.delete(i); redraw(); });
    root.append(html("label", {}, box, swatch(`var(--c${i % 8})`), run.label));
  });
}

function smoothingSlider(view, redraw) {
  const slider = document.querySelector('[name="smoothing"]');
  if (!slider) return;
  const shown = slider.parentElement.querySelector("output");
  const apply = () => { view.decay = Number(slider.value); shown.textContent = view.decay ? view.decay.toFixed(2) : "off"; };
  slider.addEventListener("input", () => { apply(); redraw(); });
  apply();
}

function keySearch(root) {
  const input = root.querySelector('[type="search"]'), rows = [...root.querySelectorAll(".keys dl > div")], count = root.querySelector("output");
  const update = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      found += row.hidden ? 0 : 1;
    }
    count.textContent = `${found} of ${rows.length} keys`;
  };
  input.addEventListener("input", update);
  update();
}

// Draws again when the width changes, not for every pixel of a drag.
function onWidthChange(redraw) {
  let width = document.body.clientWidth, queued = 0;
  new ResizeObserver(() => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    cancelAnimationFrame(queued);
    queued = requestAnimationFrame(redraw);
  }).observe(document.body);
}

function start() {
  const data = JSON.parse(document.getElementById("payload").textContent);
  const view = { decay: 0, visible: new Set(data.runs.map((_, i) => i)) };
  const draws = [];
  const redraw = () => draws.forEach((draw) => draw());
  smoothingSlider(view, redraw);
  runToggles(data, view, redraw);
  for (const group of data.groups) {
    const root = document.querySelector(`[data-charts="${group.name}"]`);
    for (const panel of group.panels) {
      const chart = chartPanel(panel, data, view);
      root.append(chart.element);
      draws.push(chart.draw);
    }
  }
  draws.push(...[drawPhases(data), explorer(data, view)].filter(Boolean));
  redraw();
  const samples = document.getElementById("samples");
  if (samples) samplesBrowser(samples, data);
  document.querySelectorAll(".searchable").forEach(keySearch);
  onWidthChange(redraw);
}

start();
