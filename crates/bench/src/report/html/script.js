// Optional: sorts tables, compares two plots, and highlights a series. The page is complete without the script.
"use strict";

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const value = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const compare = (a, b) => (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => compare(value(a, column), value(b, column)));
      body.append(...(down ? rows.reverse() : rows));
    };
    head.classList.add("sorts");
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter") sort();
    });
  });
}

for (const chooser of document.querySelectorAll(".chooser")) {
  const panels = chooser.nextElementSibling;
  const figures = [...panels.children];
  const selects = chooser.querySelectorAll("select");
  if (figures.length < 3) continue;
  const show = (pair) => {
    panels.classList.toggle("two", pair.length > 0);
    figures.forEach((figure, index) => (figure.hidden = pair.length > 0 && !pair.includes(index)));
  };
  selects.forEach((select, side) => {
    select.append(...figures.map((figure, index) => new Option(figure.dataset.name, index)));
    select.selectedIndex = side;
    select.addEventListener("change", () => show([...selects].map((it) => it.selectedIndex)));
  });
  chooser.querySelector("button").addEventListener("click", () => show([]));
  chooser.hidden = false;
}

const point = (name) => {
  document.body.classList.toggle("pointed", name !== undefined);
  for (const it of document.querySelectorAll("[data-name].series, tr[data-name]")) {
    it.classList.toggle("here", it.dataset.name === name);
  }
};
for (const it of document.querySelectorAll("[data-name].series, tr[data-name]")) {
  it.addEventListener("pointerenter", () => point(it.dataset.name));
  it.addEventListener("pointerleave", () => point(undefined));
}
