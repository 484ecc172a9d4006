/* Draws the views of the page's data into their places. Expressions are interpreted, not compiled,
   as the page's policy allows no evaluation of text. */

const { config, views } = JSON.parse(document.getElementById("plots").textContent);
const options = {
  config,
  mode: "vega-lite",
  renderer: "svg",
  actions: false,
  ast: true,
  defaultStyle: false,
  tooltip: { disableDefaultStyle: true },
};

async function draw() {
  for (const { place, spec } of views) {
    const element = document.getElementById(place);
    try {
      await vegaEmbed(element, spec, options);
      element.classList.add("drawn");
    } catch (error) {
      element.textContent = `This plot could not be drawn: ${error}`;
      console.error(place, error);
    }
  }
  document.documentElement.classList.add("ready");
}

/* On paper there is nothing to open. */
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) {
    details.open = true;
  }
});

draw();
