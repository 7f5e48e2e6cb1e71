// How numbers read: units a person would say, never more digits than they carry.

function siSteps(value, base, names) {
  let size = Math.abs(value), i = 0;
  while (size >= base && i < names.length - 1) { size /= base; i += 1; }
  return `${plain(Math.sign(value) * size)} ${names[i]}`.trim();
}

function plain(value, digits = 4) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-4) return value.toExponential(Math.min(2, digits - 1)).replace("e+", "e").replace(/\.?0+e/, "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(digits)));
}

function readable(value, unit) {
  if (value === null || value === undefined) return "not finite";
  if (unit === "bytes") return siSteps(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
  if (unit === "s" && value !== 0 && Math.abs(value) < 0.1) {
    return Math.abs(value) < 1e-3 ? `${plain(value * 1e6, 3)} µs` : `${plain(value * 1e3, 3)} ms`;
  }
  if (unit === "s" && value >= 600) return `${plain(value / 60, 3)} min`;
  const short = ["s", "GiB", "MiB", "tokens", "tokens/s", "nats"].includes(unit) ? ` ${unit}` : "";
  return plain(value) + short;
}

// Three to six round values within [low, high].
function niceTicks(low, high, count = 4) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const off = (candidate) => Math.abs(Math.log(candidate / raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).reduce((best, next) => (off(next) < off(best) ? next : best));
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

// Round values in the base a unit is counted in: bytes go by powers of two.
function unitTicks(low, high, unit) {
  if (unit !== "bytes") return niceTicks(low, high);
  const scale = 1024 ** Math.max(0, Math.floor(Math.log(Math.max(Math.abs(low), Math.abs(high), 1)) / Math.log(1024)));
  return niceTicks(low / scale, high / scale).map((tick) => tick * scale);
}

function decadeTicks(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / 5));
  const ticks = [];
  for (let power = first; power <= last; power += every) ticks.push(10 ** power);
  return ticks;
}

// Exponential moving average without a bias towards its start; gaps stay gaps.
function smooth(values, decay) {
  if (decay === 0) return values;
  let total = 0, weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    total = decay * total + value;
    weight = decay * weight + 1;
    return total / weight;
  });
}
