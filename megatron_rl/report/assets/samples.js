// The samples browser: filter, sort, read.

const PAGE_SIZE = 20;
const [S_RUN, S_STEP, S_REWARD, S_FINISH, S_PROMPT, S_RESPONSE, S_UID] = [0, 1, 2, 3, 4, 5, 6];

function highlighted(text, needle) {
  if (!needle) return [text];
  const parts = [], lower = text.toLowerCase();
  let from = 0;
  // Lower-casing may change the length of a text; then positions would not fit.
  if (lower.length !== text.length) return [text];
  for (let at = lower.indexOf(needle); at >= 0; at = lower.indexOf(needle, from)) {
    parts.push(text.slice(from, at), html("mark", {}, text.slice(at, at + needle.length)));
    from = at + needle.length;
  }
  return [...parts, text.slice(from)];
}

function rewardBar(reward, [low, high]) {
  const bar = html("i");
  bar.style.width = `${high > low ? (100 * (reward - low)) / (high - low) : 100}%`;
  return html("span", { class: "bar", "aria-hidden": "true" }, bar);
}

function sampleItem(sample, runs, needle, range) {
  const reward = sample[S_REWARD];
  const meta = html(
    "div", { class: "meta" },
    html("div", { class: "reward" }, reward === null ? "no reward" : `reward ${plain(reward)}`),
    reward === null ? null : rewardBar(reward, range),
    html("div", {}, `step ${sample[S_STEP]}${sample[S_FINISH] ? ` · ${sample[S_FINISH]}` : ""}`),
    runs.length > 1 ? html("div", {}, runs[sample[S_RUN]].label) : null,
    html("div", {}, sample[S_UID]),
  );
  const response = sample[S_RESPONSE] === "" ? [html("em", {}, "empty response")] : highlighted(sample[S_RESPONSE], needle);
  return html(
    "li", {}, meta,
    html("div", {}, html("pre", { class: "prompt", dir: "auto" }, ...highlighted(sample[S_PROMPT], needle)), html("pre", { class: "response", dir: "auto" }, ...response)),
  );
}

function numberOf(input, fallback) {
  return input.value === "" || Number.isNaN(Number(input.value)) ? fallback : Number(input.value);
}

const SAMPLE_ORDERS = {
  newest: (a, b) => b[S_STEP] - a[S_STEP],
  oldest: (a, b) => a[S_STEP] - b[S_STEP],
  "highest reward": (a, b) => (b[S_REWARD] ?? -Infinity) - (a[S_REWARD] ?? -Infinity),
  "lowest reward": (a, b) => (a[S_REWARD] ?? Infinity) - (b[S_REWARD] ?? Infinity),
};

function samplesBrowser(root, data) {
  const field = (name) => root.querySelector(`[name="${name}"]`);
  const list = root.querySelector("ul"), count = root.querySelector("output"), more = root.querySelector("button.more");
  const rewards = data.samples.map((sample) => sample[S_REWARD]).filter((reward) => reward !== null);
  const range = [rewards.reduce((a, b) => Math.min(a, b), 0), rewards.reduce((a, b) => Math.max(a, b), 1)];
  let matches = [], shown = 0;
  const showMore = () => {
    const needle = field("text").value.toLowerCase();
    list.append(...matches.slice(shown, shown + PAGE_SIZE).map((sample) => sampleItem(sample, data.runs, needle, range)));
    shown = Math.min(matches.length, shown + PAGE_SIZE);
    more.hidden = shown === matches.length;
    const [found, here, recorded] = [matches.length, data.samples.length, data.num_samples_recorded].map((n) => n.toLocaleString("en-US"));
    count.textContent = `${found} of ${here} samples${here === recorded ? "" : `; ${recorded} were recorded, see samples.jsonl`}`;
  };
  const update = () => {
    const needle = field("text").value.toLowerCase(), run = field("run") ? field("run").value : "";
    const from = numberOf(field("from"), -Infinity), to = numberOf(field("to"), Infinity);
    const least = numberOf(field("least"), null), most = numberOf(field("most"), null);
    matches = data.samples.filter((sample) => (run === "" || sample[S_RUN] === Number(run))
      && sample[S_STEP] >= from && sample[S_STEP] <= to
      && (least === null || (sample[S_REWARD] !== null && sample[S_REWARD] >= least))
      && (most === null || (sample[S_REWARD] !== null && sample[S_REWARD] <= most))
      && (!needle || [S_PROMPT, S_RESPONSE, S_UID].some((part) => sample[part].toLowerCase().includes(needle))));
    matches.sort(SAMPLE_ORDERS[field("order").value]);
    shown = 0;
    list.replaceChildren();
    showMore();
  };
  root.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  root.querySelector("form").addEventListener("input", update);
  more.addEventListener("click", showMore);
  update();
}
