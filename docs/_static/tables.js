// A table that is wider than the page moves sideways. It is then as wide as on a wide page, and its words not squeezed.

function fit() {
    for (const box of document.querySelectorAll(".table-wrapper")) {
        box.classList.remove("wide");
        box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
    }
}
addEventListener("load", fit);
addEventListener("resize", fit);

// A long table has a field above it. Rows without what is typed there are hidden.
const LONG = 20;

addEventListener("load", () => {
    for (const box of document.querySelectorAll(".table-wrapper")) {
        const rows = [...box.querySelectorAll("tbody tr")];
        if (rows.length <= LONG) continue;
        const field = document.createElement("input");
        field.type = "search";
        field.className = "filter";
        field.placeholder = `Filter ${rows.length} rows`;
        field.setAttribute("aria-label", field.placeholder);
        field.addEventListener("input", () => {
            const words = field.value.toLowerCase().split(" ");
            for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
        });
        box.before(field);
    }
});
