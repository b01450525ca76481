// The explorer's frames follow the page's switch between light and dark, and not the system's alone.

const frames = document.querySelectorAll("iframe.explorer");

function follow() {
    const { theme } = document.body.dataset; // auto, light or dark
    for (const frame of frames) {
        const address = frame.src.replace(/&theme=\w+$/, "") + (["light", "dark"].includes(theme) ? `&theme=${theme}` : "");
        if (frame.src !== address) frame.src = address;
    }
}

new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-theme"] });
follow();
