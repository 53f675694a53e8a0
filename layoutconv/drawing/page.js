"use strict";
// Pointing at a cell, or moving to it by arrow keys, shows what it is and which cells belong to it:
// those of its key, or those that the links of a step lead to. Steps are shown one at a time; the
// coordinates of one are played, each followed through its panels.

const tip = document.getElementById("tip");
const main = document.querySelector("main");
const facts = cell => (cell.facts ??= Object.fromEntries(JSON.parse(cell.dataset.facts)));

function showTip(cell, x, y, above) {
  const list = document.createElement("dl");
  for (const [name, value] of Object.entries(facts(cell))) {
    list.appendChild(document.createElement("dt")).textContent = name;
    list.appendChild(document.createElement("dd")).textContent = value;
  }
  tip.replaceChildren(list);
  tip.style.display = "block";
  const right = x + 16 + tip.offsetWidth > innerWidth;
  const below = above ? y > tip.offsetHeight + 16 : y + 16 + tip.offsetHeight > innerHeight;
  tip.style.left = Math.max(4, x + (right ? -12 - tip.offsetWidth : 16)) + "px";
  tip.style.top = Math.max(4, y + (below ? -12 - tip.offsetHeight : 16)) + "px";
}

// One step: its panels, and the cells that are followed through them.
class Step {
  constructor(section) {
    this.section = section;
    this.links = JSON.parse(section.dataset.links || "[]");
    this.panels = [...section.querySelectorAll("figure")];
    this.cells = this.panels.map(panel => [...panel.querySelectorAll("[data-facts]")]);
    this.readout = section.querySelector(".readout");
    this.kept = null;
    this.panels.forEach((panel, i) => this.prepare(panel, this.cells[i], i));
    if (this.links.length) {
      this.drawOn(section.querySelector(".panels"));
      this.player = Player.of(this);
    }
  }

  // The cell of the first panel that shows where no layout is the result.
  get witness() {
    return this.cells[0]?.find(cell => cell.querySelector('rect[stroke="#1f2937"]'));
  }

  prepare(panel, cells, i) {
    const picture = panel.querySelector("svg"), title = picture.querySelector("title");
    if (title) {  // a name for those who do not see it, without a tip of the browser's own
      picture.setAttribute("aria-label", title.textContent);
      title.remove();
    }
    picture.setAttribute("role", "group");
    cells.forEach((cell, n) => {
      cell.setAttribute("role", "img");
      cell.setAttribute("tabindex", n ? -1 : 0);
      const told = Object.entries(facts(cell)).map(([name, value]) => `${name} ${value}`);
      cell.setAttribute("aria-label", told.join(", "));
      cell.addEventListener("pointermove", event => this.tell(cell, event.clientX, event.clientY));
      cell.addEventListener("pointerenter", () => this.kept || this.follow(cell, i));
      cell.addEventListener("pointerleave", () => {
        tip.style.display = "none";
        if (!this.kept) this.forget();
      });
      cell.addEventListener("click", event => {  // a click, or a touch, keeps it lit
        this.player?.pause();
        this.kept = this.kept === cell ? null : cell;
        this.follow(cell, i);
        event.stopPropagation();
      });
      cell.addEventListener("focus", () => {
        const box = cell.getBoundingClientRect();
        if (cell.matches(":focus-visible")) this.tell(cell, box.right - 8, box.top + 8);
        this.follow(cell, i);
      });
      cell.addEventListener("blur", () => {
        tip.style.display = "none";
        if (!this.kept) this.forget();
      });
      cell.addEventListener("keydown", event => this.move(event, cell, cells));
    });
    panel.addEventListener("scroll", () => this.arrows && this.connect());
  }

  // The ways to other panels leave a cell below it: there the tip would hide them.
  tell(cell, x, y) {
    showTip(cell, x, y, this.links.length > 0);
  }

  // Arrow keys go to the nearest cell in their direction, the straightest first.
  move(event, cell, cells) {
    if (event.key === "Escape") {
      this.kept = null;
      this.forget();
      tip.style.display = "none";
      return;
    }
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1],
      ArrowDown: [0, 1] }[event.key] || [0, 0];
    if (!dx && !dy) return;
    event.preventDefault();
    const from = cell.getBoundingClientRect();
    let best = null, least = Infinity;
    for (const other of cells) {
      const to = other.getBoundingClientRect();
      const x = to.left - from.left, y = to.top - from.top;
      const along = x * dx + y * dy, aside = Math.abs(x * dy) + Math.abs(y * dx);
      if (along > 1 && along + 4 * aside < least) [best, least] = [other, along + 4 * aside];
    }
    if (!best) return;
    cell.setAttribute("tabindex", -1);
    best.setAttribute("tabindex", 0);
    best.focus();
  }

  // Every panel's cells that belong to a cell: each panel is reached once, along the links.
  reached(cell, start) {
    const found = new Map([[start, [cell]]]), asked = new Map([[start, "coordinate"]]);
    const queue = [start];
    while (queue.length) {
      const here = queue.shift();
      for (const [i, fact, j, other] of this.links) {
        for (const [from, name, to, wanted] of [[i, fact, j, other], [j, other, i, fact]]) {
          if (from !== here || found.has(to)) continue;
          const values = new Set(found.get(here).map(c => facts(c)[name]));
          values.delete(undefined);
          found.set(to, this.cells[to].filter(c => values.has(facts(c)[wanted])));
          const index = name === "position" && !facts(found.get(here)[0]).offset.startsWith("(");
          asked.set(to, index ? wanted : "coordinate");
          queue.push(to);
        }
      }
    }
    return [found, asked];
  }

  follow(cell, i) {
    this.forget();
    if (!this.links.length) {
      const key = cell.dataset.key;
      const alike = this.cells.flat().filter(c => c === cell || (key && c.dataset.key === key));
      this.light(alike, alike.length > 1);
      if (this.readout) this.readout.textContent = cell.getAttribute("aria-label");
      return;
    }
    const [found, asked] = this.reached(cell, i);
    this.light([...found.values()].flat(), true);
    this.found = found;
    for (const [panel, cells] of found) if (panel !== i && cells.length) this.reveal(panel, cells[0]);
    this.connect();
    this.readout.textContent = [...found.keys()].sort().map(panel => {
      const cells = found.get(panel), name = this.panels[panel].dataset.name;
      if (!cells.length) return `${name}: no cell that is shown`;
      if (cells.length > 1) return `${name}: ${cells.length} cells`;
      const told = facts(cells[0]), at = told[asked.get(panel)];
      return `${name}${at.startsWith("(") ? at : `(${at})`} = ${told.offset ?? told.padding}`;
    }).join("  →  ");
  }

  light(cells, others) {
    for (const cell of cells) cell.classList.add("lit");
    this.section.classList.toggle("asking", others);
  }

  forget() {
    this.section.classList.remove("asking");
    for (const cell of this.section.querySelectorAll(".lit, .coming")) {
      cell.classList.remove("lit", "coming");
    }
    this.found = null;
    this.connect();
    if (this.readout) this.readout.textContent = this.readout.dataset.empty;
  }

  reveal(panel, cell) {
    const frame = this.panels[panel], box = cell.getBoundingClientRect();
    const seen = frame.getBoundingClientRect();
    if (box.left < seen.left || box.right > seen.right) {
      frame.scrollLeft += box.left - seen.left - frame.clientWidth / 2;
    }
  }

  drawOn(ground) {
    this.arrows = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.arrows.setAttribute("class", "ways");
    this.arrows.setAttribute("aria-hidden", "true");
    ground.appendChild(this.arrows);
    this.ground = ground;
    new ResizeObserver(() => this.connect()).observe(ground);
  }

  // Curves from the cells of a panel to those that their links lead to.
  connect() {
    if (!this.arrows) return;
    const shapes = [];
    const shape = (name, given) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
      shapes.push(made);
    };
    const origin = this.ground.getBoundingClientRect();
    const middle = cell => {
      const box = cell.getBoundingClientRect();
      return [box.left + box.width / 2 - origin.left, box.bottom - 1 - origin.top];
    };
    for (const [i, fact, j, other] of this.found ? this.links : []) {
      for (const from of this.found.get(i) || []) {
        for (const to of (this.found.get(j) || []).slice(0, 32)) {
          if (facts(from)[fact] !== facts(to)[other]) continue;
          const [x0, y0] = middle(from), [x1, y1] = middle(to);
          const lift = Math.min(60, 18 + Math.abs(x1 - x0) / 8);
          const bend = `${x0 + (x1 - x0) / 3} ${y0 + lift} ${x1 - (x1 - x0) / 3} ${y1 + lift}`;
          const kind = fact === other ? "same" : "next";  // the same coordinate, or what it leads to
          shape("path", { d: `M${x0} ${y0} C${bend} ${x1} ${y1}`, class: kind });
          shape("circle", { cx: x1, cy: y1, r: 4 });
        }
      }
    }
    this.arrows.replaceChildren(...shapes);
  }
}

// Goes through the coordinates of a step's first panel, by itself or by a slider: each is followed
// to the other panels, and the result, the third of them, has the cells that are known by then.
class Player {
  static of(step) {
    const cells = step.cells[0].filter(cell => facts(cell).index !== undefined);
    cells.sort((a, b) => facts(a).index - facts(b).index);
    return cells.length > 1 ? new Player(step, cells) : null;
  }

  constructor(step, cells) {
    [this.step, this.cells, this.timer] = [step, cells, null];
    this.bar = document.createElement("div");
    this.bar.className = "player";
    this.button = this.bar.appendChild(document.createElement("button"));
    this.button.type = "button";
    this.slider = this.bar.appendChild(document.createElement("input"));
    Object.assign(this.slider, { type: "range", min: 0, max: cells.length - 1, value: 0 });
    this.slider.setAttribute("aria-label", "Coordinate that is followed");
    this.pause();
    this.button.addEventListener("click", () => (this.timer ? this.pause() : this.play()));
    this.slider.addEventListener("input", () => { this.pause(); this.show(+this.slider.value); });
    this.bar.addEventListener("click", event => event.stopPropagation());
    step.section.querySelector(".panels").before(this.bar);
  }

  play() {
    const last = this.cells.length - 1;
    // Some twelve seconds for all of them, but no more than four and no fewer than one in a second.
    const pause = Math.min(900, Math.max(250, 12000 / this.cells.length));
    this.button.textContent = "Pause";
    let at = +this.slider.value;
    at = at === last ? 0 : at;
    this.show(at);
    this.timer = setInterval(() => (at < last ? this.show(++at) : this.pause()), pause);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.button.textContent = "Play";
  }

  show(at) {
    const cell = this.cells[at];
    this.slider.value = at;
    this.slider.setAttribute("aria-valuetext", cell.getAttribute("aria-label"));
    this.step.kept = cell;
    this.step.follow(cell, 0);
    for (const one of this.step.cells[2] ?? []) {
      one.classList.toggle("coming", +facts(one).index > +facts(cell).index);
    }
  }
}

// Sections one at a time; those that are not shown are taken out of the page, because a picture
// that is hidden keeps its patterns from others.
function mount() {
  const sections = [...main.querySelectorAll("section")];
  const bar = document.querySelector(".steps");
  let current = 0;
  for (const section of sections) section.step = new Step(section);
  if (!bar) return;
  const [back, next] = bar.querySelectorAll("button"), where = bar.querySelector("output");
  const show = n => {
    sections[current].step.player?.pause();
    current = n;
    tip.style.display = "none";
    for (const section of sections) section.remove();
    main.append(sections[n]);
    const focused = document.activeElement;  // a button that is disabled loses the focus
    back.disabled = n === 0;
    next.disabled = n === sections.length - 1;
    for (const [one, other] of [[back, next], [next, back]]) {
      if (one.disabled && focused === one) other.focus();
    }
    where.textContent = n ? `step ${n} of ${sections.length - 1}` : "result";
    sections[n].step.connect();
  };
  back.addEventListener("click", () => show(current - 1));
  next.addEventListener("click", () => show(current + 1));
  bar.hidden = sections.length < 2;
  const why = sections[0].querySelector("button.witness"), last = sections.at(-1).step;
  if (why && last.witness) {
    why.hidden = false;
    why.addEventListener("click", event => {
      event.stopPropagation();
      show(sections.length - 1);
      if (last.player) last.player.show(last.player.cells.indexOf(last.witness));
      else last.follow((last.kept = last.witness), 0);
      (last.player?.slider ?? next).focus();
    });
  }
  show(0);
}

document.addEventListener("click", () => {
  for (const { step } of document.querySelectorAll("section")) {
    if (!step) continue;
    step.player?.pause();
    step.kept = null;
    step.forget();
  }
});
addEventListener("scroll", () => (tip.style.display = "none"));
mount();

// With a server behind it, the page draws while one types.
const form = document.querySelector("form");
if (form) {
  let waiting, last;
  const ask = async () => {
    last?.abort();
    const mine = (last = new AbortController());
    const query = new URLSearchParams(new FormData(form));
    try {
      const answer = await fetch(`drawing?${query}`, { signal: mine.signal });
      main.innerHTML = await answer.text();
      history.replaceState(null, "", `?${query}`);
    } catch (error) {
      if (error.name === "AbortError") return;
      main.innerHTML = '<section class="wrong"><h2>The server does not answer</h2>' +
        "<p>Start it again: <code>layoutconv draw --serve</code>.</p></section>";
    }
    mount();
  };
  form.addEventListener("submit", event => {
    event.preventDefault();
    clearTimeout(waiting);
    ask();
  });
  form.elements.expression.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(ask, 350);
  });
  for (const link of document.querySelectorAll(".examples a")) {
    link.addEventListener("click", event => {
      event.preventDefault();
      form.elements.expression.value = link.textContent;
      ask();
    });
  }
}
