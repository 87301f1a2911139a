// The page of the shop: it draws what /live tells twice a second, and sends what is pressed. No library.

const sides = ["plain", "levee"];
const shown = 60; // seconds on the charts
const svgns = "http://www.w3.org/2000/svg";
const shop = { about: null, frames: [], last: null };
window.shop = shop;

const $ = (id) => document.getElementById(id);
const sum = (list, of) => list.reduce((n, x) => n + of(x), 0);
const css = (name) => `var(--${name})`;

function number(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return "–";
  return n >= 9.95 || n === 0 ? Math.round(n).toLocaleString("en-US") : n.toFixed(1);
}

function el(parent, name, attributes = {}, text) {
  const e = document.createElementNS(svgns, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") Object.assign(e.style, value);
    else e.setAttribute(key, value);
  }
  if (text !== undefined) e.textContent = text;
  parent.appendChild(e);
  return e;
}

// ---- charts

// A chart draws its series over the last minute. A series has a name, a colour, and value(frame, side frames) or null.
class Chart {
  constructor(o) {
    this.o = o;
    this.box = document.createElement("figure");
    this.box.className = "chart";
    const title = document.createElement("h2");
    title.append(o.title + " ");
    const unit = document.createElement("span");
    unit.className = "quiet";
    unit.textContent = o.unit;
    title.append(unit);
    const says = document.createElement("p");
    says.className = "says";
    says.textContent = o.says;
    const legend = document.createElement("div");
    legend.className = "legend";
    for (const s of o.series) {
      const item = document.createElement("span"), swatch = document.createElement("i");
      if (o.stacked || o.bars) swatch.className = "area";
      swatch.style.background = css(s.colour);
      if (s.dash) swatch.style.background = `repeating-linear-gradient(90deg, ${css(s.colour)} 0 4px, transparent 4px 7px)`;
      item.append(swatch, s.name);
      legend.append(item);
    }
    this.svg = document.createElementNS(svgns, "svg");
    this.svg.setAttribute("role", "img");
    this.box.append(title, says, legend, this.svg);
    $("charts").append(this.box);
  }

  draw() {
    const { o, svg } = this, w = svg.clientWidth || 400, h = 190;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${w} ${h}`);
    this.area = { left: 54, right: w - 10, top: 44, bottom: h - 22 };
    if (o.bars) this.drawBars();
    else this.drawLines();
  }

  y(value) {
    const { top, bottom } = this.area;
    if (this.o.log) {
      const low = Math.log10(this.o.log[0]), high = Math.log10(this.o.log[1]);
      return bottom - (bottom - top) * (Math.log10(Math.min(Math.max(value, this.o.log[0]), this.o.log[1])) - low) / (high - low);
    }
    return bottom - (bottom - top) * Math.min(value / this.top, 1);
  }

  // scale finds the upper end of the axis, and draws it.
  scale(most) {
    const { o, svg, area } = this;
    let ticks;
    if (o.log) {
      ticks = [];
      for (let t = o.log[0]; t <= o.log[1]; t *= 10) ticks.push(t);
    } else {
      const least = o.least || 10, rough = Math.max(most, least) / 3;
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = o.percent ? (Math.max(most, least) > 40 ? 50 : 20) : [1, 2, 5, 10].find((m) => m * power >= rough) * power;
      this.top = o.percent ? (step === 50 ? 100 : 40) : Math.ceil(Math.max(most, least) / step) * step;
      ticks = [];
      for (let t = 0; t <= this.top + step / 10; t += step) ticks.push(t);
    }
    for (const t of ticks) {
      const y = this.y(t);
      el(svg, "line", { class: t === 0 ? "axis" : "grid", x1: area.left, x2: area.right, y1: y, y2: y });
      el(svg, "text", { x: area.left - 6, y: y + 4, "text-anchor": "end" }, o.tick ? o.tick(t) : t.toLocaleString("en-US"));
    }
  }

  drawLines() {
    const { o, svg, area } = this;
    const now = shop.last ? shop.last.At : 0, frames = shop.frames.filter((f) => f.At >= now - shown);
    const x = (at) => area.right - (area.right - area.left) * (now - at) / shown;
    let values = o.series.map((s) => frames.map((f) => s.value(f)));
    if (o.stacked) {
      const below = frames.map(() => 0);
      values = values.map((v) => v.map((n, i) => (below[i] += n || 0)));
    }
    this.scale(Math.max(0, ...values.flat().filter((v) => v !== null && Number.isFinite(v))));
    for (const s of [0, 15, 30, 45, 60]) {
      el(svg, "text", { x: x(now - s), y: area.bottom + 15, "text-anchor": s === 0 ? "end" : "middle" }, s === 0 ? "now" : `−${s} s`);
    }
    if (o.stacked) {
      for (let i = o.series.length - 1; i >= 0; i--) {
        const up = frames.map((f, n) => `${x(f.At).toFixed(1)},${this.y(values[i][n]).toFixed(1)}`);
        if (up.length > 1) el(svg, "path", { d: `M${x(frames[0].At)},${area.bottom}L${up.join("L")}L${x(frames.at(-1).At)},${area.bottom}Z`, style: { fill: css(o.series[i].colour) } });
      }
    } else {
      o.series.forEach((s, i) => {
        let d = "";
        values[i].forEach((v, n) => {
          if (v === null || v === undefined || Number.isNaN(v)) d += " ";
          else d += `${d === "" || d.endsWith(" ") ? "M" : "L"}${x(frames[n].At).toFixed(1)},${this.y(v).toFixed(1)}`;
        });
        if (d.trim()) el(svg, "path", { class: "line" + (s.dash ? " dash" : ""), d, style: { stroke: css(s.colour) } });
      });
    }
    if (o.limit) {
      const limit = o.limit();
      if (limit && limit.value <= this.top) {
        el(svg, "line", { class: "mark", x1: area.left, x2: area.right, y1: this.y(limit.value), y2: this.y(limit.value) });
        el(svg, "text", { class: "over", x: area.left + 4, y: this.y(limit.value) - 4 }, limit.name);
      }
    }
    this.drawEvents(frames, x);
    const latest = o.series.map((s, i) => `${s.name} ${number(frames.length ? s.value(frames.at(-1)) : null)}`);
    svg.setAttribute("aria-label", `${o.title}, ${o.unit}. Now: ${latest.join(", ")}`);
  }

  // drawEvents marks what was pressed. A name is left out where it would stand on another; all lines are below the names.
  drawEvents(frames, x) {
    const events = frames.flatMap((f) => (f.Events || []).map((name) => ({ name, at: x(f.At) }))).filter((e) => e.at >= this.area.left);
    for (const { at } of events) el(this.svg, "line", { class: "mark", x1: at, x2: at, y1: 6, y2: this.area.bottom });
    const ends = [-99, -99, -99];
    for (const { name, at } of events) {
      const width = name.length * 5.6, flip = at + width + 4 > this.area.right;
      const from = flip ? at - width - 4 : at + 3, row = ends.findIndex((end) => end <= from);
      if (row < 0) continue;
      ends[row] = flip ? at + 2 : from + width + 6;
      el(this.svg, "text", { class: "event over", x: flip ? at - 3 : at + 3, y: 12 + 12 * row, "text-anchor": flip ? "end" : "start" }, name);
    }
  }

  drawBars() {
    const { o, svg, area } = this, last = shop.last;
    const values = o.series.map((s) => (last && s.value(last)) || []);
    const n = Math.max(1, ...values.map((v) => v.length)), step = (area.right - area.left) / n;
    area.top = 12;
    this.scale(Math.max(0, ...values.flat()));
    values.forEach((list, i) => list.forEach((v, second) => {
      const width = step * 0.36, y = this.y(v);
      if (v > 0) el(svg, "rect", { x: area.left + second * step + step * (0.12 + 0.4 * i), y, width, height: area.bottom - y, rx: 2, style: { fill: css(o.series[i].colour) } });
    }));
    for (let s = 0; s < n; s += n > 8 ? 2 : 1) {
      el(svg, "text", { x: area.left + (s + 0.5) * step, y: area.bottom + 15, "text-anchor": "middle" }, s === n - 1 ? "" : `${s}–${s + 1} s`);
    }
    svg.setAttribute("aria-label", `${o.title}, ${o.unit}. ` + o.series.map((s, i) => `${s.name}: at most ${Math.max(0, ...values[i])} in one second`).join(", "));
  }
}

const per = (f, n) => n / f.Seconds;
const shareOf = (side, tier) => (f) => {
  const n = f.Sides[side].Now, all = n.Local + n.Filter + n.Redis + n.Source + n.Errors + n.PageErrors;
  return all ? 100 * tier(n) / all : 0;
};
const percent = (t) => `${t} %`;
const millis = (t) => (t >= 1000 ? `${t / 1000} s` : `${t} ms`);

const charts = [
  new Chart({
    title: "Database queries", unit: "per second", least: 60,
    says: "What the cache lets through. Lower is better.",
    limit: () => shop.about && { value: shop.about.Connections * 1000 / shop.about.Query, name: "what each database can bear" },
    series: sides.map((name, i) => ({ name: i ? "levee" : "plain", colour: name, value: (f) => per(f, f.Sides[i].Queries) })),
  }),
  new Chart({
    title: "What visitors wait", unit: "log scale", log: [0.1, 10000], tick: millis,
    says: "Half of them wait less than p50, one of a hundred longer than p99. Lower is better.",
    series: sides.flatMap((name, i) => [
      { name: `${name} p99`, colour: name, value: (f) => f.Sides[i].P99 || null },
      { name: `${name} p50`, colour: name, dash: true, value: (f) => f.Sides[i].P50 || null },
    ]),
  }),
  new Chart({
    title: "Requests", unit: "answered per second", least: 100,
    says: "Of visitors and of the scraper. Both shops get the same requests.",
    series: sides.flatMap((name, i) => [
      { name, colour: name, value: (f) => per(f, f.Sides[i].Now.Answered + f.Sides[i].Now.Pages - f.Sides[i].Now.PageErrors) },
      { name: `${name} errors`, colour: name, dash: true, value: (f) => per(f, f.Sides[i].Now.Errors + f.Sides[i].Now.PageErrors) },
    ]),
  }),
  new Chart({
    title: "What serves requests in levee", unit: "% of requests",
    says: "The more the local tier, the filter and Redis serve, the less reaches the database.", percent: true, least: 100, stacked: true, tick: percent,
    series: [["local tier", "local", "Local"], ["filter", "filter", "Filter"], ["Redis", "redis", "Redis"], ["database", "source", "Source"]]
      .map(([name, colour, field]) => ({ name, colour, value: shareOf(1, (n) => n[field]) }))
      .concat({ name: "error", colour: "error", value: shareOf(1, (n) => n.Errors + n.PageErrors) }),
  }),
  new Chart({
    title: "Stale answers", unit: "% of levee's visitors",
    says: "Values past their TTL that are served at once while one process loads the new one.", percent: true, least: 20, tick: percent,
    series: [{ name: "levee", colour: "levee", value: (f) => (f.Sides[1].Now.Asked ? 100 * f.Sides[1].Now.Stale / f.Sides[1].Now.Asked : 0) }],
  }),
  new Chart({
    title: "When products expire", unit: "in Redis, in so many seconds",
    says: "A low, wide hill expires bit by bit; one tall bar is an avalanche to come.", bars: true, least: 20,
    series: sides.map((name, i) => ({ name, colour: name, value: (f) => f.Ends[i] })),
  }),
];

// ---- the read paths

const colours = { local: "local", filter: "filter", redis: "redis", source: "source", error: "error" };

// A Path is the picture of a read path. Requests of the last beat flow on it as dots: as far as they had to go, and then down, answered.
class Path {
  constructor(side) {
    this.side = side;
    this.svg = $(`${sides[side]}-path`);
    this.dots = [];
  }

  // nodes are the stages with what is to be said of each.
  nodes(f) {
    const s = f.Sides[this.side], n = s.Now, t = f.Trouble, p = f.Protections, rate = (k) => `${number(per(f, k))}/s`;
    const redis = { key: "redis", name: "Redis", under: `serves ${rate(n.Redis)}` };
    if (t.RedisGone) Object.assign(redis, { state: "bad", above: "down" });
    else if (t.SlowRedis) Object.assign(redis, { state: "warn", above: `${shop.about.Late} ms late` });
    const outage = s.Processes.filter((q) => q.Address && q.Outage).length;
    if (outage && !redis.state) Object.assign(redis, { state: "warn", above: "bypassed" });
    else if (outage) redis.above += ", bypassed";
    const database = { key: "source", name: "database", under: `queries ${rate(s.Queries)}`, more: `${s.AtOnce} at once` };
    if (t.SlowDatabase) Object.assign(database, { state: "warn", above: "slow" });
    const visitors = { key: "visitors", name: "requests", under: rate(n.Asked + n.Pages), more: t.Flood ? "half a scraper's" : "" };
    if (this.side === 0) return [visitors, redis, database];
    const open = s.Processes.filter((q) => q.Address && q.Breaker === "open").length;
    const off = (on) => (on ? {} : { state: "off", above: "off" });
    const shared = Math.max(0, n.Source - s.Queries);
    return [
      visitors,
      { key: "local", name: "local tier", under: `serves ${rate(n.Local)}`, ...off(p.Local) },
      { key: "filter", name: "filter", under: `refuses ${rate(n.Filter)}`, ...off(p.Filter) },
      redis,
      { key: "flight", name: "flight + lease", under: `shares ${rate(shared)}`, ...off(p.Lease) },
      { key: "breaker", name: "breaker", under: open ? `open in ${open}` : `fails ${rate(n.Errors + n.PageErrors)}`, ...(open ? { state: "bad", above: "open" } : off(p.Breaker)) },
      database,
    ];
  }

  draw(f) {
    const { svg } = this, w = svg.clientWidth || 600, nodes = this.nodes(f), narrow = w < 560;
    this.layer = null;
    svg.replaceChildren();
    const n = f.Sides[this.side].Now, all = Math.max(1, n.Asked + n.Pages);
    const rest = this.rest(f, nodes);
    let h, place;
    if (narrow) {
      h = nodes.length * 56 + 4;
      place = (i) => ({ x: 74, y: 28 + 56 * i });
    } else {
      h = 132;
      place = (i) => ({ x: 62 + (w - 124) * i / (nodes.length - 1), y: 50 });
    }
    svg.setAttribute("viewBox", `0 0 ${w} ${h}`);
    svg.style.height = `${h}px`;
    const width = narrow ? 124 : Math.min(120, (w - 124) / (nodes.length - 1) - 16), half = 17;
    nodes.forEach((_, i) => {
      if (i === 0) return;
      const a = place(i - 1), b = place(i);
      el(svg, "line", { class: "edge", x1: a.x, y1: a.y, x2: b.x, y2: b.y, "stroke-width": (1.5 + 9 * Math.sqrt(Math.min(1, rest[i] / all))).toFixed(1) });
    });
    this.layer = el(svg, "g");
    nodes.forEach((node, i) => {
      const { x, y } = place(i);
      el(svg, "rect", { class: `node ${node.state || ""}`, x: x - width / 2, y: y - half, width, height: 2 * half, rx: 8 });
      el(svg, "text", { class: "strong", x, y: y + 4, "text-anchor": "middle" }, node.name);
      const side = narrow ? { x: x + width / 2 + 12, "text-anchor": "start" } : { x, "text-anchor": "middle" };
      const lines = [node.under, node.more].filter(Boolean);
      if (narrow) {
        el(svg, "text", { ...side, y: y + 4 }, lines.join(", "));
        if (node.above) el(svg, "text", { ...side, y: y - 12, class: node.state === "warn" ? "warn" : "bad" }, node.above);
      } else {
        lines.forEach((line, k) => el(svg, "text", { ...side, y: y + half + 18 + 16 * k }, line));
        if (node.above) el(svg, "text", { ...side, y: y - half - 8, class: node.state === "warn" ? "warn" : "bad" }, node.above);
      }
    });
    this.spots = Object.fromEntries(nodes.map((node, i) => [node.key, place(i)]));
    this.narrow = narrow;
    this.flow(f, all);
    svg.setAttribute("aria-label", `The read path of ${this.side ? "levee" : "the plain cache-aside"}: ` + nodes.map((k) => `${k.name} ${k.above || ""} ${k.under}`).join("; "));
  }

  // rest is how many requests go on to each stage.
  rest(f, nodes) {
    const n = f.Sides[this.side].Now;
    let left = n.Asked + n.Pages;
    const answered = { local: n.Local, filter: n.Filter, redis: n.Redis };
    return nodes.map((node) => {
      const here = left;
      left -= answered[node.key] || 0;
      return node.key === "source" ? f.Sides[this.side].Queries : Math.max(0, here);
    });
  }

  // flow sends dots, of each kind the more the more requests there were.
  flow(f, all) {
    const n = f.Sides[this.side].Now, now = performance.now(), still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.dots = this.dots.filter((d) => now < d.end);
    if (still) return;
    for (const [kind, count] of [["local", n.Local], ["filter", n.Filter], ["redis", n.Redis], ["source", n.Source], ["error", n.Errors + n.PageErrors]]) {
      const dots = Math.min(14, Math.ceil(18 * count / all));
      for (let i = 0; i < dots; i++) {
        const begin = now + 1000 * f.Seconds * (i + Math.random()) / dots;
        this.dots.push({ kind, begin, end: begin + 1100 });
      }
    }
  }

  move(now) {
    if (!this.layer || !this.spots) return;
    const { layer, spots, narrow } = this;
    while (layer.childNodes.length < this.dots.length) el(layer, "circle", { r: 3.6 });
    while (layer.childNodes.length > this.dots.length) layer.lastChild.remove();
    const from = spots.visitors;
    this.dots.forEach((d, i) => {
      const dot = layer.childNodes[i], part = (now - d.begin) / 1100, to = spots[d.kind === "error" ? "source" : d.kind] || spots.source;
      if (part < 0 || part > 1) {
        dot.setAttribute("opacity", 0);
        return;
      }
      const on = Math.min(1, part / 0.8), off = Math.max(0, (part - 0.8) / 0.2), drop = 22 * off;
      dot.setAttribute("cx", from.x + (to.x - from.x) * on + (narrow ? 0 : 0) + (narrow ? drop * 3 : 0));
      dot.setAttribute("cy", from.y + (to.y - from.y) * on + (narrow ? 0 : drop));
      dot.setAttribute("opacity", 1 - off);
      dot.style.fill = css(colours[d.kind]);
    });
  }
}

const paths = sides.map((_, side) => new Path(side));

// ---- the numbers, the table, the controls

function numbers(f) {
  // Over the last second, so that they can be read.
  const recent = shop.frames.filter((g) => g.At > f.At - 1.2), seconds = sum(recent, (g) => g.Seconds) || 1;
  sides.forEach((name, i) => {
    $(`${name}-queries`).textContent = number(sum(recent, (g) => g.Sides[i].Queries) / seconds);
    $(`${name}-answered`).textContent = number(sum(recent, (g) => g.Sides[i].Now.Answered) / seconds);
    const errors = sum(recent, (g) => g.Sides[i].Now.Errors) / seconds;
    $(`${name}-errors`).textContent = number(errors);
    $(`${name}-errors`).className = errors > 0 ? "bad" : "";
    $(`${name}-p50`).textContent = number(f.Sides[i].P50);
    $(`${name}-p99`).textContent = number(f.Sides[i].P99);
    const list = f.Sides[i].Processes.map((p) => {
      const dead = !p.Address, item = document.createElement(i && !dead ? "a" : "span");
      item.textContent = `process ${p.Number}${dead ? " killed" : ""}`;
      item.className = dead ? "dead" : "alive";
      if (i && !dead) {
        item.href = `http://${p.Address}/debug/levee`;
        item.target = "_blank";
        item.title = "What cachedebug shows of it";
      }
      return item;
    });
    const box = $(`${name}-processes`), text = list.map((item) => item.textContent + (item.href || "")).join();
    if (box.dataset.text !== text) { // do not take the focus from a link
      box.dataset.text = text;
      box.replaceChildren(...list);
    }
  });
}

function priceTable(change) {
  if (!change) return;
  $("price-cents").textContent = `${(change.Cents / 100).toFixed(2)} €, time after the writer had its answer`;
  const body = document.createElement("tbody");
  change.Served.forEach((list, i) => {
    const row = body.insertRow(), head = document.createElement("th");
    head.scope = "row";
    head.textContent = i ? "levee" : "plain cache-aside";
    head.className = i ? "levee-name" : "plain-name";
    row.append(head);
    list.forEach((ms, k) => {
      const cell = row.insertCell();
      cell.dataset.served = ms;
      cell.textContent = `process ${k + 1}: ${ms < 0 ? "not yet" : ms < 1 ? "under 1 ms" : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`}`;
    });
  });
  $("price").replaceChildren(body);
}

// starved says so while this machine has no time for the shop: what is measured then are its processors.
function starved() {
  const late = Math.max(...shop.frames.slice(-10).map((f) => f.Stalled)), box = $("starved");
  box.hidden = !(late > 50);
  const text = `This machine is busy: the shop stood still for up to ${Math.round(late / 10) * 10} ms at a time in the last seconds. Waiting times and errors of both sides are its own doing as well.`;
  if (!box.hidden && box.textContent !== text) box.textContent = text;
}

function controls(f) {
  const pressed = { flood: f.Trouble.Flood, "stop-redis": f.Trouble.RedisGone, "slow-redis": f.Trouble.SlowRedis, "slow-database": f.Trouble.SlowDatabase };
  for (const [name, on] of Object.entries(pressed)) document.querySelector(`[data-press="${name}"]`).setAttribute("aria-pressed", on);
  const checked = { filter: f.Protections.Filter, nulls: f.Protections.Nulls, jitter: f.Protections.Jitter, lease: f.Protections.Lease, local: f.Protections.Local, breaker: f.Protections.Breaker };
  for (const [name, on] of Object.entries(checked)) document.querySelector(`[data-turn="${name}"]`).setAttribute("aria-checked", on);
}

async function send(button, path) {
  const status = $("status"), name = button.textContent;
  button.setAttribute("aria-busy", "true");
  try {
    const response = await fetch(path, { method: "POST", headers: { "X-Levee-Shop": "1" } });
    status.className = response.ok ? "" : "bad";
    status.textContent = response.ok ? `${name}: done` : `${name}: ${await response.text()}`;
  } catch {
    status.className = "bad";
    status.textContent = `${name}: the shop does not answer`;
  }
  button.removeAttribute("aria-busy");
}

for (const button of document.querySelectorAll("[data-press]")) button.addEventListener("click", () => send(button, `/press/${button.dataset.press}`));
for (const button of document.querySelectorAll("[data-turn]")) {
  button.addEventListener("click", () => send(button, `/turn/${button.dataset.turn}/${button.getAttribute("aria-checked") === "true" ? "off" : "on"}`));
}

// ---- the stream

function draw() {
  const f = shop.last;
  if (!f || document.hidden) return;
  numbers(f);
  starved();
  controls(f);
  priceTable(f.Price);
  paths.forEach((p) => p.draw(f));
  charts.forEach((c) => c.draw());
}

const stream = new EventSource("/live");
stream.addEventListener("about", (e) => {
  const a = (shop.about = JSON.parse(e.data));
  shop.frames = [];
  $("about").textContent = `${a.Processes} processes each, on ${a.About}; ${a.Rate} visitors a second each, half of them for one product of ${a.Products}; ` +
    `TTL ${a.TTL} s, a query takes ${a.Query} ms, ${a.Connections} connections for each shop.`;
  document.querySelector('[data-press="slow-redis"]').textContent = `Slow Redis by ${a.Late} ms`;
  $("note").hidden = !a.Note;
  $("note").textContent = a.Note;
});
stream.addEventListener("frames", (e) => {
  if (!shop.last) $("status").textContent = "";
  shop.frames.push(...JSON.parse(e.data));
  shop.frames = shop.frames.slice(-240);
  shop.last = shop.frames.at(-1);
  draw();
});
stream.addEventListener("error", () => {
  $("status").className = "bad";
  $("status").textContent = "the shop does not answer";
});
addEventListener("resize", draw);
document.addEventListener("visibilitychange", draw);
requestAnimationFrame(function frame(now) {
  if (!document.hidden) paths.forEach((p) => p.move(now));
  requestAnimationFrame(frame);
});
