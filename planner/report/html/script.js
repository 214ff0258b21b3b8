"use strict";
// Tooltips and keyboard for marks: one tab stop per picture, arrows inside it. The page is complete without this.
(function () {
  const tip = document.getElementById("tip");
  const groups = Array.from(document.querySelectorAll("svg.chart, .pool"));

  function show(mark, x, y) {
    tip.textContent = mark.getAttribute("aria-label");
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, x - box.width / 2), document.documentElement.clientWidth - box.width - 8);
    const above = y - box.height - 12;
    tip.style.left = left + "px";
    tip.style.top = (above < 8 ? y + 20 : above) + "px";
  }
  function hide() { tip.hidden = true; }
  function markOf(target) { return target instanceof Element ? target.closest(".mark") : null; }

  document.addEventListener("pointermove", function (event) {
    const mark = markOf(event.target);
    if (mark) { show(mark, event.clientX, event.clientY); } else if (!markOf(document.activeElement)) { hide(); }
  });
  document.addEventListener("pointerdown", function (event) {
    const mark = markOf(event.target);
    if (mark) { show(mark, event.clientX, event.clientY); } else { hide(); }
  });
  document.addEventListener("focusin", function (event) {
    const mark = markOf(event.target);
    if (!mark) { hide(); return; }
    const box = mark.getBoundingClientRect();
    show(mark, box.left + box.width / 2, box.top);
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, { passive: true });

  groups.forEach(function (group) {
    const marks = Array.from(group.querySelectorAll(".mark"));
    marks.forEach(function (mark, index) { mark.setAttribute("tabindex", index ? "-1" : "0"); });
    group.addEventListener("keydown", function (event) {
      const at = marks.indexOf(document.activeElement);
      if (event.key === "Escape") { hide(); return; }
      const steps = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: marks.length - 1 };
      if (at < 0 || !(event.key in steps)) { return; }
      event.preventDefault();
      const next = marks[Math.min(marks.length - 1, Math.max(0, steps[event.key]))];
      marks[at].setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    });
  });

  // Tables behind figures belong to what is printed.
  let opened = [];
  window.addEventListener("beforeprint", function () {
    opened = Array.from(document.querySelectorAll("details:not([open])"));
    opened.forEach(function (part) { part.open = true; });
  });
  window.addEventListener("afterprint", function () {
    opened.forEach(function (part) { part.open = false; });
  });
})();
