"use strict";
// A graph of likely edges: variables on a circle, which stay where they are when the threshold moves.
const graphs = (() => {
  const { add } = drawing;
  const short = (name, letters) => (name.length > letters ? `${name.slice(0, letters - 1)}…` : name);
  const shown = (value) => (value >= 0.9995 ? "1" : value < 0.0005 ? "0" : value.toFixed(3));

  // Where the variables are, and on which side their names.
  function placesOf({ names, order }, width, height) {
    const upright = names.length > 16; // names along the radius
    const letters = width < 500 ? 8 : upright ? 12 : 16; // of a name beside its variable
    const room = 14 + 6.2 * Math.max(...names.map((name) => short(name, letters).length));
    const across = Math.max(width / 2 - room, 30);
    const radius = Math.min(across, Math.max(height / 2 - (upright ? room : 24), 30));
    const places = [];
    order.forEach((variable, i) => {
      const angle = (2 * Math.PI * i) / order.length - Math.PI / 2;
      const [dx, dy] = [Math.cos(angle), Math.sin(angle)];
      places[variable] = { x: width / 2 + radius * dx, y: height / 2 + radius * dy, dx, dy, angle };
    });
    return { places, radius, upright, letters };
  }

  // A curve from one place to another, bent towards the middle and `aside` to its right.
  function curve(from, to, middle, gap, aside) {
    const [ax, ay] = [(from.x + to.x) / 2, (from.y + to.y) / 2];
    const [lx, ly] = [to.x - from.x, to.y - from.y];
    const far = Math.hypot(middle.x - ax, middle.y - ay) || 1;
    const by = Math.min(0.35, (0.4 * Math.hypot(lx, ly)) / far); // neighbours are not led far away
    const bend = { x: ax + (middle.x - ax) * by - ly * aside, y: ay + (middle.y - ay) * by + lx * aside };
    const towards = (end, gone) => {
      const way = Math.hypot(bend.x - end.x, bend.y - end.y) || 1;
      return { x: end.x + ((bend.x - end.x) / way) * gone, y: end.y + ((bend.y - end.y) / way) * gone };
    };
    return { start: towards(from, gap), bend, end: towards(to, gap), towards };
  }
  const at = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  const pathOf = ({ start, bend, end }) => `M${at(start)}Q${at(bend)} ${at(end)}`;

  function arrow(group, from, to, middle, dot, share, aside) {
    const line = curve(from, to, middle, dot + 1, aside);
    const [size, back] = [4, line.towards(to, dot + 10)];
    const [ux, uy] = [(line.end.x - back.x) / 9, (line.end.y - back.y) / 9];
    const made = add(group, "g", { class: "edge", opacity: (0.35 + 0.65 * share).toFixed(2) });
    add(made, "path", { d: pathOf({ ...line, end: back }), "stroke-width": (0.8 + 1.6 * share).toFixed(2) });
    const side = (sign) => ({ x: back.x - sign * size * uy, y: back.y + sign * size * ux });
    add(made, "path", { class: "head", d: `M${at(line.end)}L${at(side(1))}L${at(side(-1))}Z` });
  }

  function draw(box, figure) {
    const [width, height] = [box.clientWidth, box.clientHeight];
    if (!width) return; // hidden
    const { names, values, threshold } = figure;
    const { places, radius, upright, letters } = placesOf(figure, width, height);
    const middle = { x: width / 2, y: height / 2 };
    const dot = Math.min(6, Math.max(2.5, (2.2 * radius) / names.length));
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("aria-hidden", "true");
    const note = Object.assign(document.createElement("div"), { className: "note", hidden: true });
    const thin = figure.large ? 0.6 : 1;
    const pairs = [];
    let [edges, joined] = [0, 0];

    function say(lines) {
      note.hidden = !lines;
      note.replaceChildren(...(lines || []).map((text) => Object.assign(document.createElement("div"), { textContent: text })));
    }
    function feel(element, lines, touches) {
      element.addEventListener("pointerenter", () => {
        say(lines());
        pairs.forEach((pair) => pair.group.classList.toggle("faint", !touches(pair)));
      });
      element.addEventListener("pointerleave", () => {
        say(null);
        pairs.forEach((pair) => pair.group.classList.remove("faint"));
      });
    }
    const both = (i, j) => {
      const [there, back] = [values[i][j], values[j][i]];
      return [`${names[i]} → ${names[j]}: ${shown(there)}`, `${names[j]} → ${names[i]}: ${shown(back)}`, `not joined: ${shown(Math.max(0, 1 - there - back))}`];
    };
    function about(variable) {
      const list = (word, of) => {
        const likely = names.map((name, i) => [name, i === variable ? 0 : of(i)]).filter(([, value]) => value >= 0.05).sort((a, b) => b[1] - a[1]);
        const lines = likely.slice(0, 6).map(([name, value]) => `${word} ${name}: ${shown(value)}`);
        return likely.length > 6 ? [...lines, `${likely.length - 6} more`] : lines;
      };
      const found = [...list("caused by", (i) => values[i][variable]), ...list("causes", (i) => values[variable][i])];
      return [names[variable], ...(found.length ? found : ["no edge has a probability of 0.05"])];
    }

    names.forEach((_, i) => names.slice(0, i).forEach((__, j) => {
      const [there, back] = [values[i][j], values[j][i]];
      const either = Math.min(there + back, 1);
      if (either <= threshold) return;
      const group = add(svg, "g", { class: "pair" });
      const line = pathOf(curve(places[i], places[j], middle, dot + 1, 0));
      joined += 1;
      add(group, "path", { class: "band-between", d: line, "stroke-width": ((2 + 5 * either) * thin).toFixed(1) });
      const aside = Math.min(there, back) > threshold ? 0.05 : 0; // one beside the other
      for (const [from, to, value] of [[i, j, there], [j, i, back]]) {
        if (value > threshold) {
          edges += 1;
          arrow(group, places[from], places[to], middle, dot, value, aside);
        }
      }
      add(group, "path", { class: "felt", d: line });
      const pair = { group, i, j };
      pairs.push(pair);
      feel(group, () => (there >= back ? both(i, j) : both(j, i)), (other) => other === pair);
    }));
    names.forEach((name, i) => {
      const { x, y, dx, dy, angle } = places[i];
      const group = add(svg, "g", { class: "variable" });
      add(group, "circle", { cx: x, cy: y, r: dot });
      const left = dx < -1e-9;
      const turn = (angle * 180) / Math.PI + (left ? 180 : 0);
      const beside = upright
        ? { transform: `translate(${x + dx * (dot + 5)} ${y + dy * (dot + 5)}) rotate(${turn.toFixed(1)})`, dy: "0.35em", "text-anchor": left ? "end" : "start" }
        : { x: x + dx * (dot + 6), y: y + dy * (dot + 9) + 4, "text-anchor": Math.abs(dx) < 0.2 ? "middle" : left ? "end" : "start" };
      add(group, "text", beside, short(name, letters));
      feel(group, () => about(i), (pair) => pair.i === i || pair.j === i);
    });
    box.replaceChildren(svg, note);
    const told = box.closest("figure").querySelector("output");
    told.textContent = `${threshold.toFixed(2)}: ${edges} edges, ${joined} pairs joined`;
  }

  return { draw };
})();
