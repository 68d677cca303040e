/* The page: its heading and its sections, from the facts that are embedded in it. */
{
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const heading = element("div", "", element("h1", "", facts.title), facts.subtitle ? element("p", "", facts.subtitle) : "");
  const main = element("main", "", ...facts.sections.map((section) => drawn(section, facts)));
  document.getElementById("page").append(element("header", "top", heading, themeButton()), main);
  // Maps measure themselves once they are part of the page.
  themeListeners.forEach((call) => call());
}
