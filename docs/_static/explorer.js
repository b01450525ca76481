// The explorer's frames follow the page's switch between light and dark, and are as high as what they show.

const frames = document.querySelectorAll("iframe.explorer");

function follow() {
    const { theme } = document.body.dataset; // auto, light or dark
    for (const frame of frames) {
        const address =
            frame.src.replace(/&theme=\w+$/, "") + (["light", "dark"].includes(theme) ? `&theme=${theme}` : "");
        if (frame.src !== address) frame.src = address;
    }
}

function fit({ target: frame }) {
    const shown = frame.contentDocument?.body; // none where the site is read from the disk: one file may not look into another
    if (shown) new ResizeObserver(() => (frame.style.height = `${shown.scrollHeight + 2}px`)).observe(shown);
}

// A picture that stands for a figure is for readers without JavaScript, and for paper.
document.documentElement.classList.add("live");
new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-theme"] });
follow();
for (const frame of frames) frame.addEventListener("load", fit);

/** Loads the frames that are not in sight one by one, as the page has time, so that none is blank in a picture of the whole
 * page. */
function loadInTurn([frame, ...others]) {
    if (!frame) return;
    (window.requestIdleCallback ?? setTimeout)(() => {
        frame.loading = "eager";
        loadInTurn(others);
    });
}
addEventListener("load", () => loadInTurn(frames));
