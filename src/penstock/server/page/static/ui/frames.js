/** Run `work` once in the next animation frame, however often it is asked for until then. */
export function oncePerFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    const run = () => {
      if (!asked) return;
      asked = false;
      work();
    };
    requestAnimationFrame(run);
    // A page in the background gets no frames; what it shows may still be read out or copied.
    if (document.hidden) setTimeout(run, 250);
  };
}

/** Run `work` when it was not asked for again for `pause` milliseconds. */
export function afterPause(pause, work) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...values), pause);
  };
}
