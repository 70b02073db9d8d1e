// Puts what is shown in its place again every few seconds. What it gets is made and escaped by the server.
"use strict";
(() => {
  const now = document.getElementById("now");
  const live = document.getElementById("live");
  const every = 3000;

  const say = (text, kind) => {
    if (live.textContent !== text) live.textContent = text;
    live.className = "chip " + kind;
  };

  // Whoever marks text to copy it keeps it.
  const marking = () => {
    const s = document.getSelection();
    return s && !s.isCollapsed && now.contains(s.anchorNode);
  };

  const look = async () => {
    try {
      if (!document.hidden && !marking()) {
        const answer = await fetch("now", { signal: AbortSignal.timeout(10000) });
        if (!answer.ok) throw new Error(answer.status + " " + answer.statusText);
        now.innerHTML = await answer.text();
        say(now.querySelector(".notice.bad") ? "not up to date" : "live", now.querySelector(".notice.bad") ? "bad" : "good");
      }
    } catch (e) {
      say("causeway-fleet does not answer", "bad");
    }
    setTimeout(look, every);
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) say("looking", "plain"); });
  look();
})();
