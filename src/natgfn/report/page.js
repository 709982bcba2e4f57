"use strict";
// Draws the charts of the page from its data, and switches runs and axes on and off.
(() => {
  const { names, figures } = JSON.parse(document.getElementById("data").textContent);
  const COLOURS = ["#2f86c9", "#e07b1a", "#2a9d6f", "#c2558f", "#8a7bd8", "#b0912b", "#4fb3bf", "#d1495b"];
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const colour = (run) => COLOURS[run % COLOURS.length];
  const dash = (run) => DASHES[Math.floor(run / COLOURS.length) % DASHES.length];
  const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const hidden = new Set();
  let axis = "updates";

  function curves(figure) {
    return figure.series.flatMap((one) => {
      const shared = { type: "scatter", mode: "lines", x: one[axis], meta: one.run, visible: !hidden.has(one.run) };
      const edge = { ...shared, line: { width: 0 }, hoverinfo: "skip" };
      const band = one.low
        ? [{ ...edge, y: one.low }, { ...edge, y: one.high, fill: "tonexty", fillcolor: colour(one.run) + "38" }]
        : [];
      const range = one.low ? one.low.map((low, i) => ` (${number(low)} to ${number(one.high[i])})`) : [];
      const line = {
        ...shared, y: one.middle, text: one.middle.map((_, i) => range[i] || ""),
        mode: one.middle.length > 1 ? "lines" : "markers",
        line: { color: colour(one.run), dash: dash(one.run), width: 2 }, marker: { color: colour(one.run) },
        hovertemplate: `%{y:.4g}%{text}<extra>${escape(names[one.run])}</extra>`,
      };
      return [...band, line];
    });
  }
  const number = (value) => (value === null ? "?" : Number(value.toPrecision(3)).toString());

  function law(figure) {
    const points = figure.series.map((one) => ({
      type: "scatter", mode: "markers", x: one.target, y: one.learned, meta: one.run, visible: !hidden.has(one.run),
      marker: { color: colour(one.run), size: 5, opacity: 0.6 },
      hovertemplate: `target %{x:.3g}, learned %{y:.3g}<extra>${escape(names[one.run])}</extra>`,
    }));
    const known = figure.series.flatMap((one) => one.target).filter((value) => value > 0);
    const ends = [Math.min(...known), Math.max(...known)];
    const diagonal = { type: "scatter", mode: "lines", x: ends, y: ends, line: { color: "#8a93a0", width: 1 }, hoverinfo: "skip" };
    return [diagonal, ...points];
  }

  function map(figure) {
    const z = figure.log ? figure.values.map((row) => row.map((v) => (v > 0 ? Math.log10(v) : null))) : figure.values;
    const named = figure.names ? { y: figure.names[0], x: figure.names[1] } : {};
    return [{
      type: "heatmap", z, ...named, customdata: figure.values, hoverongaps: false,
      colorscale: "Viridis", ...(figure.names ? { zmin: 0, zmax: 1 } : {}),
      colorbar: { thickness: 10, tickprefix: figure.log ? "10^" : "", outlinewidth: 0 },
      hovertemplate: `${figure.axes[0]} %{y}, ${figure.axes[1]} %{x}: %{customdata:.3g}<extra></extra>`,
    }];
  }

  function layout(figure) {
    const clear = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false };
    const shared = { ...clear, margin: { l: 52, r: 12, t: 8, b: 40 }, font: { size: 11 }, hovermode: "closest" };
    const plain = { zeroline: false, automargin: true, exponentformat: "power" };
    if (figure.kind === "curves") {
      const y = { ...plain, nticks: 6, type: figure.log ? "log" : "linear" };
      return { ...shared, hovermode: "x", xaxis: { ...plain, title: { text: axis } }, yaxis: y };
    }
    if (figure.kind === "law") {
      const log = (text) => ({ ...plain, type: "log", title: { text } });
      return { ...shared, xaxis: log("target probability"), yaxis: log("learned probability") };
    }
    const side = (text) => ({ ...plain, showgrid: false, title: { text }, type: figure.names ? "category" : "linear" });
    const square = figure.values.length === figure.values[0].length;
    const y = { ...side(figure.axes[0]), autorange: figure.names ? "reversed" : true };
    return { ...shared, xaxis: { ...side(figure.axes[1]), constrain: "domain" }, yaxis: square ? { ...y, scaleanchor: "x", constrain: "domain" } : y };
  }

  const traces = { curves, law, map };
  const options = { responsive: true, displaylogo: false, displayModeBar: false };
  const drawn = new Set();
  function draw(figure) {
    drawn.add(figure);
    Plotly.react(figure.id, traces[figure.kind](figure), layout(figure), options);
    document.body.dataset.drawn = "yes";
  }
  const redraw = (wanted) => figures.filter((figure) => drawn.has(figure) && wanted(figure)).forEach(draw);

  // A chart is drawn when it comes near the window, each in a task of its own: a page with many
  // opens as fast as one with few.
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      watcher.unobserve(entry.target);
      setTimeout(draw, 0, figures.find((figure) => figure.id === entry.target.id));
    }
  }, { rootMargin: "200px" });

  function press(button, on) {
    button.setAttribute("aria-pressed", String(on));
  }

  names.forEach((name, run) => {
    const button = document.createElement("button");
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = colour(run);
    button.type = "button";
    button.append(swatch, name);
    press(button, true);
    button.addEventListener("click", () => {
      const off = !hidden.delete(run);
      if (off) hidden.add(run);
      press(button, !off);
      document.querySelectorAll(`figure[data-run="${run}"]`).forEach((figure) => figure.classList.toggle("off", off));
      redraw((figure) => figure.kind !== "map" || figure.run === run);
    });
    document.getElementById("legend").append(button);
  });

  document.querySelectorAll("#axis button").forEach((button) => {
    button.addEventListener("click", () => {
      axis = button.dataset.axis;
      document.querySelectorAll("#axis button").forEach((other) => press(other, other === button));
      redraw((figure) => figure.kind === "curves");
    });
  });

  document.querySelectorAll("button.log").forEach((button) => {
    const figure = figures.find((one) => one.id === button.dataset.figure);
    button.addEventListener("click", () => {
      figure.log = !figure.log;
      press(button, figure.log);
      redraw((one) => one === figure);
    });
  });

  const moves = figures.some((figure) => figure.kind === "curves");
  document.getElementById("axis").hidden = !moves;
  document.getElementById("legend").hidden = names.length < 2;
  document.getElementById("controls").hidden = !moves && names.length < 2;
  window.addEventListener("beforeprint", () => figures.forEach(draw));
  figures.forEach((figure) => watcher.observe(document.getElementById(figure.id)));
})();
