// Seconds of each step, stacked by phase.

// Each phase keeps its colour, whatever else a run times.
function phaseColor(phase, order) {
  const known = order.indexOf(phase);
  return `var(--p${known < 0 ? 11 : known})`;
}

function binName([first, last]) {
  return first === last ? `step ${first}` : `steps ${first} to ${last}, mean`;
}

function phaseChart(drawing, output, timeline, order) {
  const { phases, bins, seconds } = timeline;
  const width = Math.max(240, drawing.clientWidth || 720), right = width - 8;
  const totals = bins.map((_, i) => seconds.reduce((sum, row) => sum + row[i], 0));
  const high = Math.max(...totals, 1e-9) * 1.06;
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / high);
  const slot = (right - LEFT) / bins.length, gap = Math.min(2, slot * 0.2);
  const x = (step) => {
    const i = Math.max(0, bins.findIndex(([, last]) => last >= step));
    return LEFT + slot * (i + 0.5);
  };
  const label = `Time of each step by phase. Slowest: ${binName(bins[totals.indexOf(Math.max(...totals))])}, ${readable(Math.max(...totals), "s")}. Arrow keys move along the steps.`;
  const chart = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": label });
  axes(chart, niceTicks(0, high), x, y, right, [bins[0][0], bins[bins.length - 1][1]], "s", false);
  const base = bins.map(() => 0);
  phases.forEach((phase, k) => {
    let path = "";
    bins.forEach((_, i) => {
      const top = y(base[i] + seconds[k][i]), bottom = y(base[i]);
      base[i] += seconds[k][i];
      if (bottom - top > 0.05) path += `M${(LEFT + slot * i).toFixed(2)} ${bottom.toFixed(2)}h${(slot - gap).toFixed(2)}V${top.toFixed(2)}h${(gap - slot).toFixed(2)}z`;
    });
    chart.append(painted("path", { d: path }, { fill: phaseColor(phase, order), stroke: "var(--paper)", strokeWidth: 0.5 }));
  });
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  chart.append(cursor);
  drawing.replaceChildren(chart);
  const nearest = (position) => Math.floor((position - LEFT) / slot);
  followCursor(chart, bins.length, (i) => LEFT + slot * (i + 0.5) - gap / 2, nearest, (i, position) => {
    cursor.setAttribute("x1", position);
    cursor.setAttribute("x2", position);
    cursor.setAttribute("visibility", "visible");
    const parts = phases.map((phase, k) => [phase, seconds[k][i]]).filter(([, value]) => value > 0.005 * totals[i]).sort((a, b) => b[1] - a[1]);
    output.textContent = `${binName(bins[i])}: ${readable(totals[i], "s")} = ${parts.map(([phase, value]) => `${phase} ${readable(value, "s")}`).join(" + ")}`;
  });
}

function phaseTable({ phases, bins, seconds }) {
  return table(["step", ...phases], bins.map((bin, i) => [binName(bin).replace("step ", ""), ...phases.map((_, k) => readable(seconds[k][i], "s"))]));
}
