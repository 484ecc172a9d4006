/** Have screen readers say a text, without moving anything. */
export function announce(text) {
  const region = document.getElementById("announcements");
  region.textContent = "";
  // A region that is emptied and filled at once is not read out.
  setTimeout(() => (region.textContent = text), 50);
}
