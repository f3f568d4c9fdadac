(() => {
  "use strict";
  const root = document.documentElement;
  const STEP = 100; // rows of a table that are shown at a time
  const components = new Map(); // id of a block -> its component
  let store = JSON.parse(document.getElementById("data").textContent);

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children);
    return element;
  };
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const save = (content, type, name) => {
    const link = make("a", { href: URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type })), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  // --- tables
  const DIGITS = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 });
  const COUNT = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
  const FORMATS = {
    count: (v) => COUNT.format(v),
    number: (v) => (v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e7) ? v.toExponential(2) : DIGITS.format(v)),
    percent: (v) => `${(100 * v).toFixed(1)}%`,
    points: (v) => v.toFixed(2),
    ms: (v) => `${Number(v.toPrecision(3))} ms`,
  };
  const shown = (value, format) =>
    value == null ? "" : typeof value === "number" && FORMATS[format] ? FORMATS[format](value) : typeof value === "boolean" ? (value ? "yes" : "no") : String(value);
  const compare = (a, b) => {
    if (a == null || b == null) return (a == null) - (b == null); // missing values last
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  };
  const quoted = (value) => {
    const text = value == null ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  function table(body, id, data) {
    const state = { sort: -1, down: false, filter: "", limit: STEP };
    const count = make("span", { class: "count", role: "status" });
    const filter = make("input", { type: "search", placeholder: "filter", "aria-label": "Filter rows", oninput: () => { state.filter = filter.value.toLowerCase(); draw(); } });
    const button = make("button", { type: "button", class: "csv", onclick: () => save(csv(), "text/csv", `${id}.csv`) }, "CSV");
    const more = make("button", { type: "button", class: "more", onclick: () => { state.limit *= 10; draw(); } });
    const head = make("thead");
    const rows = make("tbody");
    body.append(make("div", { class: "bar" }, filter, count, make("span", { class: "gap" }), button), make("div", { class: "scroll" }, make("table", {}, head, rows)), make("div", { class: "bar" }, more));

    const chosen = () => {
      const words = state.filter.split(/\s+/).filter(Boolean);
      const found = data.rows.filter((row) => {
        const text = words.length ? row.map((value, i) => shown(value, data.columns[i].format)).join(" ").toLowerCase() : "";
        return words.every((word) => text.includes(word));
      });
      if (state.sort >= 0) {
        const [column, sign] = [state.sort, state.down ? -1 : 1];
        found.sort((a, b) => (a[column] == null || b[column] == null ? compare(a[column], b[column]) : sign * compare(a[column], b[column])));
      }
      return found;
    };
    const csv = () => [data.columns.map((one) => quoted(one.key)), ...chosen().map((row) => row.map(quoted))].map((line) => line.join(",")).join("\n") + "\n";
    const heading = (column, place) => {
      const sorted = place === state.sort ? (state.down ? "descending" : "ascending") : null;
      const click = () => { state.down = place === state.sort ? !state.down : false; state.sort = place; draw(); head.querySelectorAll("button")[place].focus(); };
      const arrow = sorted ? (state.down ? " ▾" : " ▴") : "";
      return make("th", { scope: "col", class: FORMATS[column.format] ? null : "left", "aria-sort": sorted, title: column.about || null }, make("button", { type: "button", onclick: click }, column.title + arrow));
    };
    const cell = (value, column) => make("td", { class: column.format === "code" ? "left code" : FORMATS[column.format] ? null : "left", "data-title": column.title }, shown(value, column.format));
    const draw = () => {
      const found = chosen();
      const visible = found.slice(0, state.limit);
      head.replaceChildren(make("tr", {}, ...data.columns.map(heading)));
      rows.replaceChildren(...visible.map((row) => make("tr", {}, ...row.map((value, i) => cell(value, data.columns[i])))));
      count.textContent = found.length === data.rows.length ? `${found.length} rows` : `${found.length} of ${data.rows.length} rows`;
      more.hidden = visible.length === found.length;
      more.textContent = `Show more of ${found.length} rows`;
    };
    draw();
    return { update: (next) => { data = next; draw(); } };
  }

  // --- charts
  const waiting = new Map();
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) if (isIntersecting) waiting.get(target)?.();
  }, { rootMargin: "300px" });

  // Plotly takes most of the time that the page needs, so text, tables and networks come first.
  const loadPlotly = () => {
    if (window.Plotly) return;
    const source = document.getElementById("plotly"), script = make("script");
    script.textContent = source.textContent;
    document.head.append(script);
    source.remove();
    waiting.forEach((draw, drawing) => seen.observe(drawing));
  };

  function themed(layout, colours, small) {
    const axis = { automargin: true, gridcolor: colours.grid, linecolor: colours.line, tickcolor: colours.line, zeroline: false };
    return {
      ...layout,
      xaxis: { ...axis, ...layout.xaxis },
      yaxis: { ...axis, ...layout.yaxis },
      paper_bgcolor: colours.back,
      plot_bgcolor: colours.back,
      font: { color: colours.text, family: "system-ui, sans-serif", size: small ? 11 : 13 },
      margin: small ? { l: 44, r: 8, t: 8, b: 44 } : { l: 60, r: 12, t: 10, b: 56 },
      hovermode: "closest",
      hoverlabel: { bgcolor: colours.label, bordercolor: colours.line, font: { color: colours.text }, align: "left", namelength: -1 },
      showlegend: false,
      height: 384,
      uirevision: "same",
    };
  }
  let printing = false;
  const screen = () => printing ? PAPER : ({ back: "rgba(0,0,0,0)", label: css("--back"), text: css("--text"), grid: css("--grid"), line: css("--line") });
  const PAPER = { back: "#ffffff", label: "#ffffff", text: "#16191d", grid: "#e3e7eb", line: "#c3cad2" };
  const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["toImage", "lasso2d", "select2d"] };

  function plot(body, id, data) {
    const hidden = new Set(); // names in the legend that are switched off
    const select = body.parentElement.querySelector(".choice select");
    const legend = make("div", { class: "bar legend", role: "group", "aria-label": "Legend" });
    const drawing = make("div", { class: "drawing" });
    const images = ["svg", "png"].map((format) => make("button", { type: "button", class: format, onclick: () => image(format) }, format.toUpperCase()));
    body.append(make("div", { class: "bar" }, legend, make("span", { class: "gap" }), ...images), drawing);
    let drawn = false;

    const chart = () => data.charts[Math.min(select ? Number(select.value) : 0, data.charts.length - 1)];
    const decoded = (text) => text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
    const traces = () => chart().data.map((trace) => ({ ...trace, visible: !hidden.has(trace.legendgroup) }));
    const draw = () => {
      if (!window.Plotly) return;
      drawn = true;
      waiting.delete(drawing);
      const names = new Map(chart().data.filter((trace) => trace.showlegend !== false).map((trace) => [trace.legendgroup, trace]));
      legend.replaceChildren(...[...names].map(([group, trace]) => {
        const colour = (trace.line || trace.marker).color;
        const toggle = make("button", { type: "button", "aria-pressed": String(!hidden.has(group)), onclick: () => { hidden.has(group) ? hidden.delete(group) : hidden.add(group); draw(); [...legend.children].find((one) => one.dataset.name === group)?.focus(); } }, make("span", { class: "key", style: `background:${colour}` }), decoded(group));
        toggle.dataset.name = group;
        return toggle;
      }));
      Plotly.react(drawing, traces(), themed(chart().layout, screen(), drawing.clientWidth < 480), CONFIG);
    };
    const image = async (format) => {
      const layout = { ...themed(chart().layout, PAPER, false), showlegend: legend.children.length > 1, title: { text: body.parentElement.querySelector("h4").textContent }, margin: { l: 60, r: 12, t: 60, b: 56 }, width: 900, height: 520 };
      const url = await Plotly.toImage({ data: traces(), layout }, { format, width: 900, height: 520, scale: format === "png" ? 2 : 1 });
      if (format === "svg") save(decodeURIComponent(url.slice(url.indexOf(",") + 1)), "image/svg+xml", `${id}.svg`);
      else save(new Blob([Uint8Array.from(atob(url.split(",")[1]), (one) => one.charCodeAt(0))], { type: "image/png" }), "", `${id}.png`);
    };
    select?.addEventListener("change", draw);
    waiting.set(drawing, draw);
    if (window.Plotly) seen.observe(drawing);
    return { update: (next) => { data = next; if (drawn) draw(); }, restyle: () => drawn && draw(), draw };
  }

  // --- networks: bars on a plane that can be moved and zoomed
  const CIVIDIS = ["#fee838", "#c9b56b", "#948e77", "#666a70", "#3b496c", "#00224e"]; // a small to a large part kept
  const ROW = 30, LANE = 250, WIDE = 130;
  const SIGNS = { add: "+", sub: "−", mul: "×", cat: "∥" };
  const svg = (tag, attributes = {}, text = "") => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text) element.textContent = text;
    return element;
  };
  const colour = (part) => {
    const place = Math.max(0, Math.min(1, part)) * (CIVIDIS.length - 1), low = Math.min(CIVIDIS.length - 2, Math.floor(place));
    const [a, b] = [CIVIDIS[low], CIVIDIS[low + 1]].map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
    return `rgb(${a.map((one, i) => Math.round(one + (b[i] - one) * (place - low))).join(",")})`;
  };

  function network(body, id, data) {
    const search = make("input", { type: "search", placeholder: "search layers", "aria-label": "Search layers" });
    const about = make("p", { class: "caption", role: "status" });
    const picture = svg("svg", { class: "graph", tabindex: "0", role: "application", "aria-label": "The layers of the network. Arrow keys choose a layer, plus and minus zoom, 0 shows all." });
    const buttons = [["+", "Zoom in", () => zoom(1.3)], ["−", "Zoom out", () => zoom(1 / 1.3)], ["Fit", "Show all", () => fit()]].map(([text, label, onclick]) => make("button", { type: "button", "aria-label": label, onclick }, text));
    const images = [["SVG", () => save(standalone(), "image/svg+xml", `${id}.svg`)], ["PNG", () => png()]].map(([text, onclick]) => make("button", { type: "button", class: text.toLowerCase(), onclick }, text));
    const key = make("span", { class: "count" }, "kept: 0% ", make("span", { class: "scale", style: `background:linear-gradient(to right, ${CIVIDIS.join(",")})` }), " 100%");
    body.append(make("div", { class: "bar" }, search, ...buttons, key, make("span", { class: "gap" }), ...images), picture, about);
    let nodes = [], view = { x: 0, y: 0, scale: 1 }, size = { left: 0, width: 1, height: 1 }, picked = -1, found = [];

    const build = () => {
      const most = Math.max(1, ...data.layers.map((one) => one.before));
      const at = (one) => [one.lane * LANE, one.row * ROW];
      const plane = svg("g", { class: "plane" });
      for (const one of data.layers) for (const source of one.inputs) {
        const from = data.layers[source], [x1, y1] = at(from), [x2, y2] = at(one), rows = one.row - from.row;
        const bend = rows > 1 ? WIDE / 2 + 14 + Math.min(8 * rows, 110) : 0;
        const path = bend ? `M${x1} ${y1}C${x1 - bend} ${y1 + ROW},${x2 - bend} ${y2 - ROW},${x2} ${y2}` : `M${x1} ${y1}L${x2} ${y2}`;
        plane.append(svg("path", { class: "edge", d: path }));
      }
      nodes = data.layers.map((one, place) => {
        const [x, y] = at(one), group = svg("g", { class: "node", "data-place": place });
        const part = one.before ? one.after / one.before : 1;
        const words = one.before ? `${one.name}: ${one.kind}, ${one.before} channels${one.after === one.before ? "" : `, ${one.after} kept (${Math.round(100 * part)}%)`}` : `${one.name}: ${one.kind}`;
        group.append(svg("title", {}, words));
        if (one.kind === "output") {
          group.append(svg("text", { x, y: y + 4, "text-anchor": "middle" }, "output"));
        } else if (one.inputs.length > 1 && (one.kind in SIGNS || one.kind === one.name)) {
          group.append(svg("circle", { class: "join", cx: x, cy: y, r: 8 }), svg("text", { x, y: y + 4, "text-anchor": "middle" }, SIGNS[one.kind] || "·"));
        } else {
          const wide = Math.max(10, WIDE * Math.sqrt(one.before / most)), left = x - wide / 2;
          group.append(svg("rect", { class: "back", x: left, y: y - 9, width: wide, height: 18, rx: 3, fill: css("--back") }));
          group.append(svg("rect", { class: "after", x: left, y: y - 9, width: wide * part, height: 18, rx: 3, fill: colour(part) }));
          group.append(svg("rect", { class: "before", x: left, y: y - 9, width: wide, height: 18, rx: 3 }));
          group.append(svg("text", { x: x + wide / 2 + 6, y: y + 4 }, one.before && one.before !== one.after ? `${one.name} ${one.before}→${one.after}` : one.before ? `${one.name} ${one.before}` : one.name));
        }
        group.addEventListener("click", () => pick(place));
        plane.append(group);
        return { group, words, x, y };
      });
      picture.replaceChildren(plane);
      const xs = nodes.map((one) => one.x), ys = nodes.map((one) => one.y);
      picture.style.height = `min(${Math.max(160, Math.max(...ys) + 3 * ROW)}px, 36rem, 75vh)`;
      size = { left: Math.min(...xs) - LANE / 1.5, width: Math.max(...xs) - Math.min(...xs) + LANE * 1.7, height: Math.max(...ys) + 2 * ROW };
    };
    const box = () => { const { width, height } = picture.getBoundingClientRect(); return { width: width || 800, height: height || 500 }; };
    const move = () => picture.firstChild.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
    const fit = () => {
      const { width, height } = box();
      const scale = Math.min(width / size.width, height / size.height);
      view = { scale, x: (width - size.width * scale) / 2 - size.left * scale, y: ROW * scale };
      move();
    };
    const start = () => {
      const { width } = box();
      const scale = Math.min(1, Math.max(0.7, width / size.width));
      view = { scale, x: width / 2 - (size.left + size.width / 2) * scale, y: ROW * scale };
      move();
    };
    const zoom = (factor, x = box().width / 2, y = box().height / 2) => {
      const scale = Math.max(0.02, Math.min(6, view.scale * factor)), ratio = scale / view.scale;
      view = { scale, x: x - (x - view.x) * ratio, y: y - (y - view.y) * ratio };
      move();
    };
    const centre = (place) => {
      const { width, height } = box();
      view.scale = Math.max(view.scale, 0.9);
      view = { ...view, x: width / 2 - nodes[place].x * view.scale, y: height / 2 - nodes[place].y * view.scale };
      move();
    };
    const pick = (place) => {
      nodes[picked]?.group.classList.remove("picked");
      picked = place;
      nodes[picked]?.group.classList.add("picked");
      about.textContent = nodes[picked]?.words || "";
    };
    const look = (next) => {
      const text = search.value.trim().toLowerCase();
      found = text ? nodes.flatMap((one, place) => (data.layers[place].name.toLowerCase().includes(text) ? [place] : [])) : [];
      nodes.forEach((one, place) => one.group.classList.toggle("hit", found.includes(place)));
      if (!text) { about.textContent = ""; return; }
      if (!found.length) { about.textContent = `no layer with ${search.value}`; return; }
      const place = next ? found[(found.indexOf(picked) + 1) % found.length] : found[0];
      pick(place);
      centre(place);
      about.textContent = `${found.indexOf(place) + 1} of ${found.length}: ${nodes[place].words}`;
    };
    search.addEventListener("input", () => look(false));
    search.addEventListener("keydown", (event) => { if (event.key === "Enter") look(true); });
    picture.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
      if (step) { const place = Math.max(0, Math.min(nodes.length - 1, picked + step)); pick(place); centre(place); }
      else if (event.key === "+" || event.key === "=") zoom(1.3);
      else if (event.key === "-") zoom(1 / 1.3);
      else if (event.key === "0") fit();
      else return;
      event.preventDefault();
    });
    picture.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== picture) return; // the page scrolls
      const { left, top } = picture.getBoundingClientRect();
      zoom(event.deltaY < 0 ? 1.15 : 1 / 1.15, event.clientX - left, event.clientY - top);
      event.preventDefault();
    }, { passive: false });
    const fingers = new Map();
    picture.addEventListener("pointerdown", (event) => fingers.set(event.pointerId, [event.clientX, event.clientY]));
    addEventListener("pointerup", (event) => fingers.delete(event.pointerId));
    addEventListener("pointercancel", (event) => fingers.delete(event.pointerId));
    addEventListener("pointermove", (event) => {
      const last = fingers.get(event.pointerId);
      if (!last) return;
      const now = [event.clientX, event.clientY], others = [...fingers].filter(([one]) => one !== event.pointerId);
      if (others.length) {
        const { left, top } = picture.getBoundingClientRect(), far = ([a, b], [c, d]) => Math.hypot(a - c, b - d), other = others[0][1];
        zoom(far(now, other) / Math.max(1, far(last, other)), other[0] - left, other[1] - top);
      } else { view = { ...view, x: view.x + now[0] - last[0], y: view.y + now[1] - last[1] }; move(); }
      fingers.set(event.pointerId, now);
    });
    const standalone = () => {
      const copy = picture.cloneNode(true);
      copy.firstChild.removeAttribute("transform");
      copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
      copy.setAttribute("viewBox", `${size.left} ${-ROW} ${size.width} ${size.height}`);
      copy.setAttribute("width", size.width);
      copy.setAttribute("height", size.height);
      for (const one of copy.querySelectorAll(".back")) one.setAttribute("fill", "#ffffff");
      copy.prepend(svg("rect", { x: size.left, y: -ROW, width: size.width, height: size.height, fill: "#ffffff" }));
      copy.prepend(svg("style", {}, "text{font:12px sans-serif;fill:#16191d}.edge{stroke:#4d5661;fill:none}.before{fill:none;stroke:#4d5661}.join{fill:#fff;stroke:#4d5661}"));
      return new XMLSerializer().serializeToString(copy);
    };
    const png = () => {
      const image = new Image();
      image.onload = () => {
        const scale = Math.min(2, 16000 / Math.max(size.width, size.height));
        const canvas = make("canvas", { width: size.width * scale, height: size.height * scale });
        canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
        canvas.toBlob((blob) => save(blob, "", `${id}.png`), "image/png");
      };
      image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone())}`;
    };
    build();
    start();
    return { update: (next) => { data = next; build(); move(); }, restyle: () => { build(); move(); look(false); } };
  }

  // --- the page
  const KINDS = { table, plot, network };
  const mount = () => {
    for (const block of document.querySelectorAll("[data-block]")) {
      const data = store.blocks[block.id];
      if (!data) continue;
      if (components.has(block.id)) components.get(block.id).update(data);
      else components.set(block.id, KINDS[data.kind](block.querySelector(".body"), block.id, data));
    }
  };
  const restyle = () => components.forEach((one) => one.restyle?.());

  const THEMES = ["auto", "light", "dark"];
  const button = document.getElementById("theme");
  const remembered = (value) => {
    try { return value === undefined ? localStorage.getItem("secateur-theme") : localStorage.setItem("secateur-theme", value); } catch { return null; }
  };
  const setTheme = (name) => {
    if (name === "auto") delete root.dataset.theme; else root.dataset.theme = name;
    button.textContent = name;
    button.setAttribute("aria-label", `Theme: ${name}`);
    restyle();
  };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(root.dataset.theme || "auto") + 1) % THEMES.length];
    remembered(next);
    setTheme(next);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
  addEventListener("beforeprint", () => { printing = true; loadPlotly(); components.forEach((one) => one.draw?.()); });
  addEventListener("afterprint", () => { printing = false; restyle(); });

  // --- live: ask for news, and keep what the reader has sorted, filtered and switched off
  const status = document.getElementById("status");
  const refresh = async () => {
    let next;
    try {
      next = await (await fetch(`data.json?stamp=${encodeURIComponent(store.stamp)}`)).json();
    } catch {
      status.textContent = "ended: this page is no longer updated";
      return;
    }
    if (next.stamp !== store.stamp) {
      const old = document.getElementById("content");
      const fresh = document.importNode(new DOMParser().parseFromString(next.html, "text/html").getElementById("content"), true);
      const top = scrollY;
      for (const block of fresh.querySelectorAll("[data-block]")) {
        const before = document.getElementById(block.id), body = before?.querySelector(".body");
        if (!components.has(block.id) || !body) continue;
        block.querySelector(".body").replaceWith(body);
        const [choice, kept] = [block, before].map((one) => one.querySelector(".choice"));
        if (choice && kept && choice.textContent === kept.textContent) choice.replaceWith(kept);
        else if (choice || kept) components.delete(block.id), body.replaceChildren();
      }
      old.replaceWith(fresh);
      store = next;
      mount();
      scrollTo(0, top);
    }
    status.textContent = next.status;
    setTimeout(refresh, 1000);
  };
  mount();
  setTheme(THEMES.includes(remembered()) ? remembered() : "auto");
  setTimeout(loadPlotly, 50);
  if ("live" in root.dataset) refresh();
})();
