// The map, the charts of the sites, the theme, and following a demo that runs. `headraceCharts` are plotly's.
{
  const SVG = "http://www.w3.org/2000/svg";
  const SPEEDS = [70, 130]; // km/h at the ends of the colours, which are those of viridis
  const COLOURS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const HOUR = 60; // minutes that a site's chart shows
  const MAP = { width: 360, side: 46, top: 30, radius: 15, beside: 11 };
  const PLOT = { flow: 84, strip: 90, height: 100 };
  const POLL_MS = 700;
  const DRAW_MS = 100, DRAW_LIVE_MS = 250; // from one picture to the next: a demo that runs needs the processor itself

  const byId = id => document.getElementById(id);
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let data = JSON.parse(byId("data").textContent);
  let at = 0, playing = false, full = 1; // the minute shown; whether time goes on; vehicles an hour at the top
  let cells = [], drawn = 0, drawnAt = 0;

  function make(name, attributes = {}, ...inside) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...inside);
    return made;
  }

  function html(name, className, ...inside) {
    const made = document.createElement(name);
    made.className = className;
    made.append(...inside);
    return made;
  }

  function colour(speed) {
    const share = Math.min(Math.max((speed - SPEEDS[0]) / (SPEEDS[1] - SPEEDS[0]), 0), 1) * (COLOURS.length - 1);
    const low = Math.min(Math.floor(share), COLOURS.length - 2), part = share - low;
    return COLOURS[low].map((value, i) => Math.round(value + (COLOURS[low + 1][i] - value) * part));
  }

  const number = value => value.toLocaleString("en-US");
  const radius = flow => MAP.radius * Math.sqrt(flow / full);

  function stamp(minute) {
    return new Date(Date.parse(data.start) + minute * 60000);
  }

  function clock(minute, day = false) {
    if (!data.start) return "";
    const options = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone: "UTC" };
    return stamp(minute).toLocaleString("en-GB", day ? { weekday: "short", day: "numeric", month: "short", ...options } : options);
  }

  // ── The map ────────────────────────────────────────────────────────────────────────────────────────────────────

  // Where each site stands on the map: those at one place side by side, numbers where no neighbour is.
  function places() {
    const xs = data.sites.map(site => site.at[0]), ys = data.sites.map(site => site.at[1]);
    const left = Math.min(...xs), north = Math.max(...ys);
    const scale = (MAP.width - 2 * MAP.side) / Math.max(Math.max(...xs) - left, 1);
    const height = (north - Math.min(...ys)) * scale + 2 * MAP.top;
    const found = data.sites.map(site => ({
      x: MAP.side + (site.at[0] - left) * scale, y: MAP.top + (north - site.at[1]) * scale }));
    const moved = found.map((one, i) => {
      const same = found.map((other, j) => j).filter(j => found[j].x === one.x && found[j].y === one.y);
      const shift = (same.indexOf(i) - (same.length - 1) / 2) * 2 * MAP.beside;
      const near = found.some(other => other.x > one.x && other.x - one.x < 40 && Math.abs(other.y - one.y) < 24);
      return { x: one.x + shift, y: one.y, side: shift < 0 || (shift === 0 && near) ? -1 : 1 };
    });
    return { found, moved, scale, height };
  }

  function drawMap() {
    const map = byId("roads"), { found, moved, scale, height } = places();
    map.setAttribute("viewBox", `0 0 ${MAP.width} ${height}`);
    map.replaceChildren();
    const named = new Set();
    const signs = [];
    for (const road of [...data.roads].sort((a, b) => a.straight - b.straight)) {
      const a = found[road.from], b = found[road.to];
      map.append(make("line", { x1: a.x, y1: a.y, x2: b.x, y2: b.y, class: road.straight ? "" : "bent" }));
      if (named.has(road.name)) continue;
      named.add(road.name);
      const middle = { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
      signs.push(make("g", { class: "name", transform: `translate(${middle.x} ${middle.y})` },
        make("rect", { x: -15, y: -10, width: 30, height: 20, rx: 4 }), make("text", {}, road.name)));
    }
    map.append(...signs);
    const bar = 5 * scale, low = height - 16;
    map.append(make("g", { class: "bar" },
      make("line", { x1: 14, y1: low, x2: 14 + bar, y2: low }), make("text", { x: 14 + bar / 2, y: low - 12 }, "5 km"),
      make("line", { x1: MAP.width - 20, y1: 52, x2: MAP.width - 20, y2: 30 }),
      make("line", { x1: MAP.width - 25, y1: 37, x2: MAP.width - 20, y2: 30 }),
      make("line", { x1: MAP.width - 15, y1: 37, x2: MAP.width - 20, y2: 30 }),
      make("text", { x: MAP.width - 20, y: 16 }, "N")));
    return moved.map((place, i) => {
      const circle = make("circle", { cx: place.x, cy: place.y, r: 3 }), title = make("title");
      map.append(make("g", { class: "site", "data-site": i }, title, circle,
        make("text", { x: place.x + place.side * (MAP.radius + 8), y: place.y }, `${i + 1}`)));
      return { circle, title };
    });
  }

  function drawScale() {
    const strip = html("div", "colours"), ends = html("div", "ends"), sizes = html("div", "sizes");
    strip.style.background = `linear-gradient(90deg, ${COLOURS.map(rgb => `rgb(${rgb})`)})`;
    for (let i = 0; i < 4; i++) ends.append(html("span", "", `${SPEEDS[0] + i * (SPEEDS[1] - SPEEDS[0]) / 3}`));
    for (const flow of [full / 5, full / 2, full]) {
      const r = radius(flow), size = 2 * r + 2;
      const circle = make("svg", { width: size, height: size, "aria-hidden": true },
        make("circle", { cx: r + 1, cy: r + 1, r }));
      sizes.append(html("span", "", circle, number(Math.round(flow))));
    }
    byId("scale").replaceChildren(
      html("div", "", html("span", "", "speed, km/h"), strip, ends),
      html("div", "", html("span", "", "flow, vehicles an hour"), sizes));
  }

  // ── A chart for each site ──────────────────────────────────────────────────────────────────────────────────────

  function drawCell(site, i) {
    const flow = html("span", ""), speed = html("span", ""), swatch = html("i", ""), kmh = html("span", "");
    speed.append(swatch, kmh);
    const area = make("path", { class: "flow" }), strip = make("image", { y: PLOT.strip, height: PLOT.height - PLOT.strip,
      preserveAspectRatio: "none" });
    const plot = make("svg", { viewBox: `0 0 ${HOUR} ${PLOT.height}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `Flow and speed: ${site.label}` });
    for (const share of [0, 0.5, 1]) {
      const y = Math.max(PLOT.flow * share, 0.6);
      plot.append(make("line", { x1: 0, x2: HOUR, y1: y, y2: y }));
    }
    plot.append(area, strip);
    const ticks = html("div", "ticks"), from = html("span", ""), to = html("span", "");
    const cell = html("article", "cell", html("h3", "", html("b", "", `${i + 1}`), site.label), html("div", "now", flow, speed),
      html("div", "plot", ticks, plot), html("div", "hour", from, to));
    cell.dataset.site = i;
    cell.title = site.id;
    byId("sites").append(cell);
    return { flow, swatch, kmh, area, strip, ticks, from, to };
  }

  // The hour before a minute as one path, with gaps where there is no row.
  function steps(flows, until) {
    let path = "", open = false;
    for (let i = 0; i < HOUR; i++) {
      const flow = flows[until - HOUR + i] ?? null;
      if (flow === null) {
        if (open) path += `V${PLOT.flow}Z`;
        open = false;
        continue;
      }
      const y = (PLOT.flow * (1 - flow / full)).toFixed(1);
      path += open ? `V${y}H${i + 1}` : `M${i} ${PLOT.flow}V${y}H${i + 1}`;
      open = true;
    }
    return open ? `${path}V${PLOT.flow}Z` : path;
  }

  function colours(speeds) {
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(speeds.length, 1);
    canvas.height = 1;
    const brush = canvas.getContext("2d");
    speeds.forEach((speed, i) => {
      if (speed === null) return;
      brush.fillStyle = `rgb(${colour(speed)})`;
      brush.fillRect(i, 0, 1, 1);
    });
    return canvas.toDataURL();
  }

  // ── What there is, and one minute of it ────────────────────────────────────────────────────────────────────────

  function take(taken) {
    data = taken;
    const top = data.sites.reduce((most, site) => site.flow.reduce((a, b) => Math.max(a, b ?? 0), most), 0);
    full = top ? Math.max(Math.ceil(top / 1000) * 1000, 2000) : 6000;
    if (!cells.length) {
      const marks = drawMap();
      cells = data.sites.map((site, i) => ({ ...marks[i], ...drawCell(site, i) }));
    }
    drawScale();
    data.sites.forEach((site, i) => {
      const cell = cells[i];
      cell.strip.setAttribute("href", colours(site.speed));
      cell.strip.setAttribute("width", Math.max(data.count, 1));
      cell.ticks.replaceChildren(...[full, full / 2, 0].map(tick => html("span", "", tick ? `${tick / 1000}k` : "0")));
    });
    byId("time").max = Math.max(data.count - 1, 0);
    show(Math.min(at, Math.max(data.count - 1, 0)));
  }

  function show(minute) {
    at = drawn = minute;
    drawnAt = performance.now();
    const now = Math.floor(at), until = now + 1;
    data.sites.forEach((site, i) => {
      const cell = cells[i], flow = site.flow[now] ?? null, speed = site.speed[now] ?? null, none = flow === null;
      const words = none ? "no row" : `${number(flow)} veh/h`, kmh = none ? "" : `${Math.round(speed)} km/h`;
      const rgb = none ? "none" : `rgb(${colour(speed)})`;
      cell.flow.textContent = words;
      cell.kmh.textContent = kmh;
      cell.swatch.style.background = rgb;
      cell.swatch.hidden = none;
      cell.title.textContent = `${i + 1} ${site.label}: ${words} ${kmh}`;
      cell.circle.setAttribute("class", none ? "none" : "");
      cell.circle.style.fill = rgb;
      cell.circle.style.r = `${none ? 3 : Math.max(radius(flow), 2)}px`;
      cell.area.setAttribute("d", steps(site.flow, until));
      cell.strip.setAttribute("x", HOUR - until);
      cell.from.textContent = clock(until - HOUR);
      cell.to.textContent = clock(until);
    });
    const words = data.count ? clock(now, true) : "no rows yet", time = byId("time");
    byId("clock").textContent = words;
    time.value = now;
    time.setAttribute("aria-valuetext", words);
  }

  // ── Time ───────────────────────────────────────────────────────────────────────────────────────────────────────

  let before = 0, going = 0, held = false; // held: by who pressed Pause or moved the slider

  function play(wanted) {
    playing = wanted;
    byId("play").textContent = playing ? "Pause" : "Play";
    clearTimeout(going);
    before = performance.now();
    if (playing) next();
  }

  // Who wants less motion gets one picture a second, of as much time.
  function next() {
    going = setTimeout(step, calm.matches ? 1000 : DRAW_MS / 4);
  }

  function step() {
    const now = performance.now(), last = Math.max(data.count - 1, 0);
    // With a demo that runs it goes at the pace of the replay, and faster while it is far behind.
    const pace = data.running ? Math.max(data.pace, (last - at) / 3) : Number(byId("pace").value);
    const to = at + Math.min(now - before, 2000) / 1000 * pace;
    before = now;
    const isDue = now - drawnAt >= (data.running ? DRAW_LIVE_MS : DRAW_MS);
    at = Math.min(to, last);
    if ((isDue && Math.floor(to) !== Math.floor(drawn)) || (at >= last && drawn < last)) show(at);
    if (at >= last && !data.running) return play(false);
    next();
  }

  byId("play").addEventListener("click", () => {
    if (!playing && at >= data.count - 1 && !data.running) at = 0;
    held = playing;
    play(!playing);
  });
  byId("time").addEventListener("input", event => {
    held = true;
    play(false);
    show(Number(event.target.value));
  });

  // A site is marked on the map and beside it when it is pointed at.
  const mark = event => {
    const of = event.target.closest?.("[data-site]")?.dataset.site;
    document.querySelectorAll("[data-site]").forEach(one => one.classList.toggle("on", one.dataset.site === of));
  };
  byId("traffic").addEventListener("pointerover", mark);
  byId("traffic").addEventListener("pointerleave", mark);

  // ── Theme ──────────────────────────────────────────────────────────────────────────────────────────────────────

  const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";

  function theme() {
    byId("theme").textContent = isDark() ? "Light" : "Dark";
    byId("theme").setAttribute("aria-label", `Show the page ${isDark() ? "light" : "dark"}`);
    headraceCharts.paint();
  }

  byId("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("headrace-theme", document.documentElement.dataset.theme); } catch { /* not kept */ }
    theme();
  });
  dark.addEventListener("change", theme);
  try {
    const kept = localStorage.getItem("headrace-theme");
    if (kept) document.documentElement.dataset.theme = kept;
  } catch { /* none is kept */ }

  // ── While the demo runs: what is new comes as a script beside the page, which also works without a server ─────────

  let turns = 0, found = 0; // how often the script was asked for; which one was the newest

  window.headraceLive = news => {
    if (news.turn === found) return;
    found = news.turn;
    say(`Running: ${number(news.rows)} of ${number(news.wanted)} rows.`);
    for (const [id, piece] of Object.entries(news.pieces)) byId(id).innerHTML = piece;
    for (const [id, chart] of Object.entries(news.charts)) headraceCharts.update(id, chart);
    take(news.data);
    if (held) return;
    if (calm.matches) show(Math.max(data.count - 1, 0));
    else if (!playing) play(true);
  };

  function say(words) {
    byId("news").hidden = false;
    byId("news").textContent = words;
  }

  function follow(file) {
    const script = document.createElement("script");
    turns += 1;
    script.src = `${file}?${turns}`;
    script.onload = () => { script.remove(); setTimeout(follow, POLL_MS, file); };
    // The file goes when the demo ends: the page itself is then the last one.
    script.onerror = () => found ? location.reload() : say("The demo has ended before its result was there.");
    document.head.append(script);
  }

  at = Math.min(HOUR - 1, Math.max(data.count - 1, 0));
  take(data);
  theme();
  if (data.count && !calm.matches) play(true);
  const live = document.documentElement.dataset.live;
  if (live) {
    say("Running: Spark is starting.");
    follow(live);
  }
}
