/* Process domains as columns, contexts as blocks in them. */

const HUES = ["cool-1", "warm-2", "cool-3", "warm-1", "cool-2", "warm-3"]; // By context, so that neighbours differ.

function drawDomains(data) {
  const section = framed(data, "domains");
  const most = largest(data.columns.map((column) => column.capacity), 1);
  const names = [...new Set(data.columns.flatMap((column) => column.blocks.map((block) => block.context)))];
  const columns = data.columns.map((column) => {
    const stack = element("div", "stack");
    stack.style.height = `${(column.capacity / most) * 100}%`;
    for (const block of column.blocks) {
      const made = element("div", `block ${HUES[names.indexOf(block.context) % HUES.length]}`,
        element("b", "", shortened(block.context, 28)), element("span", "", `${block.what} ${size(block.bytes)}`));
      made.style.top = `${(block.address / column.capacity) * 100}%`;
      made.style.height = `${(block.bytes / column.capacity) * 100}%`;
      made.title = `${block.context}: ${block.what}, ${grouped(block.bytes)} bytes at ${grouped(block.address)}`;
      if (block.bytes / most < 0.045) made.classList.add("thin");
      stack.append(made);
    }
    const used = column.blocks.reduce((sum, block) => sum + block.bytes, 0);
    return element("div", "column", element("h3", "", column.title), element("div", "room", stack),
      element("div", "note", `${size(used)} of ${size(column.capacity)}`));
  });
  section.append(element("div", "columns", ...columns));
  return section;
}
