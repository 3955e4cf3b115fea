// Script that the test appends to a page. It checks the layout of the rendered page. It appends a report to the page:
// one line per error, then the number of elements of each kind.
"use strict";

const found = [];
const seen = { plots: 0, marks: 0, texts: 0, tables: 0, choosers: 0 };
const SLACK = 0.75;

const meets = (a, b) =>
  Math.min(a.right, b.right) - Math.max(a.left, b.left) > SLACK &&
  Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > SLACK;
const within = (a, b) =>
  a.left >= b.left - SLACK && a.right <= b.right + SLACK &&
  a.top >= b.top - SLACK && a.bottom <= b.bottom + SLACK;

const channels = (color) => (color.match(/[\d.]+/g) ?? []).map(Number);
const luminance = (color) => {
  const [r, g, b] = channels(color).slice(0, 3).map((channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const paper = luminance(getComputedStyle(document.body).backgroundColor);
const contrast = (color) => {
  const ink = luminance(color);
  return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
};

if (DARK !== paper < 0.2) found.push(`the background has luminance ${paper}`);
if (document.documentElement.scrollWidth > window.innerWidth) found.push("the page is too wide");

for (const svg of document.querySelectorAll("svg.plot")) {
  const name = svg.closest("figure").querySelector("figcaption").textContent;
  const room = svg.getBoundingClientRect();
  const boxed = (selector) =>
    [...svg.querySelectorAll(selector)].map((it) => ({ it, box: it.getBoundingClientRect() }));
  const marks = boxed(".mark").filter(({ box }) => box.width > 0 || box.height > 0);
  const texts = boxed("text").filter(({ it }) => it.textContent !== "");
  seen.plots += 1;
  seen.marks += marks.length;
  seen.texts += texts.length;
  if (marks.filter(({ it }) => !it.classList.contains("key")).length === 0) {
    found.push(`${name}: empty`);
  }
  for (const { it, box } of [...marks, ...texts]) {
    if (!within(box, room)) found.push(`${name}: ${it.outerHTML} is outside`);
  }
  texts.forEach(({ it, box }, index) => {
    for (const other of texts.slice(index + 1)) {
      if (meets(box, other.box)) found.push(`${name}: ${it.textContent} is on ${other.it.textContent}`);
    }
    for (const mark of marks) {
      if (mark.it.matches(".dot") && it.matches(".name") && meets(box, mark.box)) {
        found.push(`${name}: ${it.textContent} is on ${mark.it.textContent}`);
      }
    }
    const fill = getComputedStyle(it).fill;
    if (contrast(fill) < 4.5) found.push(`${name}: text in ${fill} is hard to read`);
  });
  for (const { it } of marks) {
    const style = getComputedStyle(it);
    const outlined = it.matches(".line, .faint");
    const color = outlined ? style.stroke : style.fill;
    // A large area next to areas of other colors needs less contrast.
    const least = it.matches(".area") ? 1.5 : 3;
    if (!(contrast(color) >= least)) found.push(`${name}: a mark in ${color} is hard to see`);
  }
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const values = (column) =>
    [...table.tBodies[0].rows].map((row) => row.cells[column].dataset.value).filter((it) => it).map(Number);
  heads.forEach((head, column) => {
    if (column === 0) return;
    for (const sign of [1, -1]) {
      head.click();
      const sorted = values(column).every((value, at, all) => at === 0 || (value - all[at - 1]) * sign >= 0);
      if (!sorted) found.push(`${head.textContent}: not sorted by a click`);
    }
  });
  seen.tables += 1;
}

for (const chooser of document.querySelectorAll(".chooser")) {
  const figures = [...chooser.nextElementSibling.children];
  if (figures.length < 3) continue;
  const second = chooser.querySelectorAll("select")[1];
  second.selectedIndex = 2;
  second.dispatchEvent(new Event("change"));
  const shown = figures.flatMap((figure, at) => (figure.getBoundingClientRect().height > 0 ? [at] : []));
  if (shown.join() !== "0,2") found.push(`two were chosen and ${shown} are there`);
  chooser.querySelector("button").click();
  if (figures.some((figure) => figure.getBoundingClientRect().height === 0)) found.push("all are not back");
  seen.choosers += 1;
}

const report = document.createElement("pre");
report.id = "findings";
report.textContent = ["BEGIN", ...found, `SEEN ${JSON.stringify(seen)}`, "END"].join("\n");
document.body.append(report);
