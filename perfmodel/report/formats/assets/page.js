"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const tip = document.getElementById("tip");
  const read = ({ columns, words, rows }) => ({ columns, rows: rows.map(row => row.map(v => (Array.isArray(v) ? words[v[0]] : v))) });
  const stored = new Map(all("script[type='application/json'][data-table]").map(s => [s.dataset.table, read(JSON.parse(s.textContent))]));
  const keys = new Map(all(".key li").map(li => [li.firstElementChild.getAttribute("href"), li.dataset.key]));
  for (const link of all("a[href^='#point-']")) {
    const target = link.getAttribute("href");
    link.dataset.point = target.slice(7);
    if (link.closest(".picture")) link.dataset.key = keys.get(target);
  }

  // Theme
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement, themeButton = document.getElementById("theme");
  const showTheme = name => {
    root.dataset.theme = name;
    themeButton.textContent = name === "dark" ? "Light" : "Dark";
    themeButton.setAttribute("aria-label", `Switch to the ${name === "dark" ? "light" : "dark"} theme`);
  };
  showTheme(dark.matches ? "dark" : "light");
  let chosen = false;
  dark.addEventListener("change", () => chosen || showTheme(dark.matches ? "dark" : "light"));
  themeButton.addEventListener("click", () => { chosen = true; showTheme(root.dataset.theme === "dark" ? "light" : "dark"); });

  const MINOR = new Set(["device", "dtype", "flops", "lower_s", "dram_bytes", "l2_bytes", "sram_bytes", "llc_bytes", "l2_intensity", "sram_intensity", "headroom", "next_roof", "time_share"]);

  // Tables: labels for narrow screens, sorting, downloads
  for (const table of all("table.cards")) {
    const heads = all("thead th,thead td", table);
    const label = heads.map(th => th.textContent.trim());
    for (const row of all("tbody tr", table)) all(":scope > *", row).forEach((cell, i) => { cell.dataset.l = label[i]; });
    table.setAttribute("role", "table");
    all("thead,tbody", table).forEach(e => e.setAttribute("role", "rowgroup"));
    all("tr", table).forEach(e => e.setAttribute("role", "row"));
    all("th", table).forEach(e => e.setAttribute("role", "columnheader"));
    all("td", table).forEach(e => e.setAttribute("role", "cell"));
    const data = stored.get(table.id), device = data ? data.columns.findIndex(c => c.key === "device") : -1;
    if (data) all("tbody tr", table).forEach((row, i) => {
      row.dataset.r = i;
      if (device >= 0 && data.rows[i][device]) row.dataset.device = data.rows[i][device];
    });
    if (data) sortable(table, heads, data);
    const more = document.querySelector(`.more[aria-controls="${table.id}"]`), lesser = heads.map(th => MINOR.has(th.dataset.k));
    if (!more) continue;
    more.hidden = !lesser.includes(true);
    for (const row of all("tbody tr", table)) all("td", row).forEach((cell, i) => cell.classList.toggle("minor", lesser[i]));
    more.addEventListener("click", () => more.setAttribute("aria-expanded", table.classList.toggle("full")));
  }
  function sortable(table, heads, data) {
    const body = table.tBodies[0], place = key => data.columns.findIndex(c => c.key === key);
    const sort = (key, down) => {
      const i = place(key), rows = all("tr", body), at = r => data.rows[r.dataset.r][i];
      rows.sort((a, b) => {
        const x = at(a), y = at(b);
        if (x === null || y === null) return (x === null) - (y === null);
        const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
        return (down ? -order : order) || a.dataset.r - b.dataset.r;
      });
      body.append(...rows);
      heads.forEach(th => th.setAttribute("aria-sort", th.dataset.k === key ? (down ? "descending" : "ascending") : "none"));
      if (select) select.value = key;
    };
    const select = document.getElementById(table.id + "-sort");
    heads.forEach(th => {
      th.setAttribute("aria-sort", "none");
      th.firstElementChild.addEventListener("click", () => sort(th.dataset.k, th.getAttribute("aria-sort") === "ascending"));
    });
    if (select) select.addEventListener("change", () => sort(select.value, false));
  }
  const quoted = value => {
    const text = value === null ? "" : String(value);
    const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? "'" + text : text;
    return /[",\n\r]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
  };
  const csv = data => [data.columns.map(c => quoted(c.unit && c.unit !== "text" ? `${c.key} [${c.unit}]` : c.key)), ...data.rows.map(row => row.map(quoted))]
    .map(row => row.join(",")).join("\r\n") + "\r\n";
  const objects = data => JSON.stringify({ columns: data.columns, rows: data.rows.map(row => Object.fromEntries(row.map((v, i) => [data.columns[i].key, v]))) }, null, 1) + "\n";
  const save = (name, blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  for (const button of all("button[data-save]")) button.addEventListener("click", () => {
    const data = stored.get(button.dataset.of), kind = button.dataset.save;
    save(`${button.dataset.name}.${kind}`, new Blob([kind === "csv" ? csv(data) : objects(data)], { type: kind === "csv" ? "text/csv" : "application/json" }));
  });

  // Selectors: level, unit and dtype, device
  const refresh = figure => {
    const level = figure.querySelector("input[data-level]:checked")?.value;
    const keys = new Set(all("input[data-key]:checked", figure).map(i => i.value));
    if (level) all("g[data-level]", figure).forEach(g => { g.toggleAttribute("hidden", g.dataset.level !== level); });
    if (figure.querySelector("input[data-key]")) {
      all(".picture [data-key],.key [data-key]", figure).forEach(e => e.toggleAttribute("hidden", !e.dataset.key.split(",").some(k => keys.has(k))));
    }
    rove(figure);
  };
  for (const figure of all(".figure")) {
    all("input", figure).forEach(input => input.addEventListener("change", () => refresh(figure)));
  }
  const device = document.getElementById("device");
  if (device) device.addEventListener("change", () => {
    for (const e of all("[data-device]")) e.toggleAttribute("hidden", device.value !== "" && e.dataset.device !== device.value);
  });

  // Points: one row is shown in the picture, the key, the table and a box beside the pointer
  const words = new Map();
  for (const [id, data] of stored) {
    const number = data.columns.findIndex(c => c.key === "number");
    const table = document.getElementById(id);
    if (number < 0 || !table) continue;
    const heads = all("thead th,thead td", table).map(th => th.textContent.trim());
    for (const row of all("tbody tr", table)) {
      const cells = all("td", row), pairs = [];
      cells.forEach((cell, i) => { if (!cell.classList.contains("none") && !cell.matches(".num,.name")) pairs.push([heads[i], [...cell.childNodes].map((n, j) => (j ? `(${n.textContent})` : n.textContent)).join(" ")]); });
      words.set(String(data.rows[row.dataset.r][number]), { title: row.querySelector(".name")?.firstChild?.textContent ?? "", pairs, row });
    }
  }
  const clear = () => { all(".on").forEach(e => e.classList.remove("on")); tip.hidden = true; };
  const near = (x, y) => {
    const wide = document.documentElement.clientWidth, box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(x + 16, wide - box.width - 8)) + scrollX}px`;
    tip.style.top = `${(y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 14) : y + 18) + scrollY}px`;
  };
  const show = (number, x, y) => {
    const said = words.get(number);
    clear();
    all(`a[data-point="${CSS.escape(number)}"]`).forEach(e => e.classList.add("on"));
    if (!said) return;
    said.row.classList.add("on");
    const title = document.createElement("b"), list = document.createElement("dl");
    title.textContent = `${number}  ${said.title}`;
    for (const [name, value] of said.pairs) {
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name; dd.textContent = value; list.append(dt, dd);
    }
    tip.replaceChildren(title, list);
    tip.hidden = false;
    near(x, y);
  };
  for (const link of all("a[data-point]")) {
    link.addEventListener("click", () => document.querySelector(link.getAttribute("href"))?.closest("details")?.setAttribute("open", ""));
    const centre = () => { const b = link.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; };
    link.addEventListener("pointerenter", e => show(link.dataset.point, e.clientX, e.clientY));
    link.addEventListener("pointermove", e => near(e.clientX, e.clientY));
    link.addEventListener("pointerleave", clear);
    link.addEventListener("focus", () => { if (link.matches(":focus-visible")) show(link.dataset.point, ...centre()); });
    link.addEventListener("blur", clear);
  }
  for (const link of all(".picture a[data-point]")) {
    const said = words.get(link.dataset.point), roof = said?.pairs.find(([name]) => name === "of its roof");
    link.setAttribute("aria-label", `${link.dataset.point}: ${said ? said.title : ""}${roof ? `, ${roof[1].split(" (")[0]} of its roof` : ""}`);
  }
  const inTable = e => {
    const name = `${e.closest("section").getAttribute("aria-labelledby")}-numbers`, row = stored.get(name).rows[e.dataset.row];
    const cells = all("td", document.querySelector(`#${CSS.escape(name)} tr[data-r="${e.dataset.row}"]`)), own = cells[Number(e.dataset.line) + 1];
    if (e.dataset.line) return `${own.dataset.l}: ${own.firstChild.textContent} at ${cells[0].dataset.l} ${cells[0].textContent}`;
    return `${row[0]}: ${cells.slice(1).map(c => `${c.dataset.l} ${c.textContent}`).join(", ")}`;
  };
  for (const e of all("[data-row]")) {
    e.addEventListener("pointerenter", event => { tip.textContent = inTable(e); tip.hidden = false; near(event.clientX, event.clientY); });
    e.addEventListener("pointermove", event => near(event.clientX, event.clientY));
    e.addEventListener("pointerleave", clear);
  }
  addEventListener("keydown", e => { if (e.key === "Escape") clear(); });

  // One tab stop per picture; arrow keys go from point to point
  function rove(figure) {
    for (const picture of all(".picture", figure)) {
      const links = all("a[data-point]", picture).filter(a => !a.closest("[hidden]")).sort((a, b) => a.dataset.point - b.dataset.point);
      links.forEach((a, i) => a.setAttribute("tabindex", i ? "-1" : "0"));
      picture.onkeydown = e => {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key], at = links.indexOf(e.target);
        if (!step || at < 0) return;
        e.preventDefault();
        const next = links[(at + step + links.length) % links.length];
        links.forEach(a => a.setAttribute("tabindex", a === next ? "0" : "-1"));
        next.focus();
      };
    }
  }
  all(".figure").forEach(rove);

  // A picture as a file
  const rules = () => [...document.getElementById("looks").sheet.cssRules].map(r => r.cssText).join("\n");
  const alone = picture => {
    const copy = picture.cloneNode(true), [, , width, height] = picture.getAttribute("viewBox").split(" ").map(Number);
    const style = document.createElementNS("http://www.w3.org/2000/svg", "style"), colours = getComputedStyle(root);
    const named = ["page", "ink", "quiet", "line", "edge", "faint", "roof", "strong", "plot", "s0", "s1", "s2", "s3", "s4", "s5"];
    style.textContent = `svg{${named.map(n => `--${n}:${colours.getPropertyValue("--" + n)}`).join(";")};background:var(--page);font-family:Inter,Arial,sans-serif}\n[hidden]{display:none}\n${rules()}\n${document.getElementById("font").textContent}`;
    copy.prepend(style);
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("class", "picture");
    copy.setAttribute("width", width); copy.setAttribute("height", height);
    return { text: new XMLSerializer().serializeToString(copy), width, height };
  };
  for (const button of all("button[data-export]")) button.addEventListener("click", () => {
    const picture = button.closest(".figure").querySelector(".picture");
    const { text, width, height } = alone(picture), name = button.dataset.name;
    if (button.dataset.export === "svg") return save(`${name}.svg`, new Blob([text], { type: "image/svg+xml" }));
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = width * 3; canvas.height = height * 3;
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(blob => save(`${name}.png`, blob), "image/png");
    };
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  });

  // In a notebook the frame is as high as the page
  if (window.frameElement) {
    const fit = () => { window.frameElement.style.height = `${document.body.scrollHeight + 4}px`; };
    fit(); addEventListener("resize", fit); addEventListener("toggle", fit, true);
  }
})();
