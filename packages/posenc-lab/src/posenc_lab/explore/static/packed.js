// What a saved page holds compressed, in scripts that no browser runs. Models stand behind the page's own script.

/** The content of the element of that id, base64 of gzip, as a response: its json() or arrayBuffer(). */
export async function unpacked(id) {
    const found = () => document.getElementById(id)?.textContent;
    const arrived = new Promise((done) => document.addEventListener("DOMContentLoaded", () => done(found())));
    const bytes = Uint8Array.from(atob(found() ?? (await arrived)), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}
