// A table that is wider than the page moves sideways. It is then as wide as on a wide page, and its words not squeezed.

function fit() {
    for (const box of document.querySelectorAll(".table-wrapper")) {
        box.classList.remove("wide");
        box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
    }
}
addEventListener("load", fit);
addEventListener("resize", fit);
