"use strict";
// Times in the zone of the browser, and live pages: the server sends the page again when it has changed, and what the
// wake of a conversation says as it comes.
(() => {
  const relative = new Intl.RelativeTimeFormat(undefined, { numeric: "always", style: "short" });
  const units = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

  function showTimes() {
    for (const each of document.querySelectorAll("time[datetime]")) {
      const at = new Date(each.dateTime);
      const away = (at - Date.now()) / 1000;
      const [unit, size] = units.find(([, seconds]) => Math.abs(away) >= seconds) || units[3];
      each.title = at.toLocaleString(undefined, { dateStyle: "full", timeStyle: "long" });
      each.textContent = relative.format(Math.round(away / size), unit);
    }
  }

  const isBusy = (main) => {
    const active = document.activeElement;
    const edits = active && main.contains(active) && active.matches("input, select, textarea");
    return edits || Boolean(main.querySelector("form[method=post] [data-edited]"));
  };

  function replaceMain(html) {
    const fresh = new DOMParser().parseFromString(html, "text/html").querySelector("main");
    const main = document.querySelector("main");
    if (!fresh || isBusy(main)) return;
    for (const each of main.querySelectorAll("details[open][id]")) {
      const same = fresh.querySelector(`#${CSS.escape(each.id)}`);
      if (same) same.open = true;
    }
    const focused = main.contains(document.activeElement) && document.activeElement.getAttribute("href");
    const scroll = [...main.querySelectorAll("pre")].map((each) => each.scrollTop);
    main.replaceWith(fresh);
    showSaid(Boolean(fresh.querySelector("#streamed")));
    if (focused) fresh.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
    [...fresh.querySelectorAll("pre")].forEach((each, place) => { each.scrollTop = scroll[place] || 0; });
    showTimes();
  }

  let known = ""; // all of it that has come
  let said = null; // by the wake that runs: its text, and whether it is said, replaced by entries, or retracted

  function showSaid(isOld) { // a page that still has what was replaced is an old one
    if (said?.state === "replaced" && !isOld) said = null;
    const list = document.querySelector(".transcript");
    if (!said || !list) return;
    if (!document.getElementById("streamed")) {
      const blank = document.getElementById("streaming");
      if (!blank) return;
      list.append(blank.content.cloneNode(true));
    }
    const item = document.getElementById("streamed");
    item.classList.toggle("retracted", said.state === "retracted");
    item.querySelector("pre").textContent = said.text;
  }

  function takeSaid(event) {
    const piece = JSON.parse(event.data);
    known = piece.text ?? known + piece.more;
    said = { state: piece.state, text: known };
    showSaid(true);
    if (said.state === "replaced") setTimeout(forget, 2000, said);
  }

  function forget(replaced) { // the page with the entries came before, or has come since
    if (said !== replaced || isBusy(document.querySelector("main"))) return;
    said = null;
    document.getElementById("streamed")?.remove();
  }

  let source = null;
  const live = document.getElementById("live");

  function connect() {
    if (source || document.hidden) return;
    source = new EventSource(location.href);
    source.onopen = () => { live.textContent = "live"; said = null; };
    source.onerror = () => { live.textContent = "not connected"; };
    source.onmessage = (event) => replaceMain(event.data);
    source.addEventListener("stream", takeSaid);
    source.addEventListener("gone", () => location.reload());
  }

  function disconnect() {
    source?.close();
    source = null;
    live.textContent = "";
  }

  document.addEventListener("input", (event) => event.target.setAttribute("data-edited", ""));
  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
  window.addEventListener("pagehide", disconnect);
  setInterval(showTimes, 1000);
  showTimes();
  connect();
})();
