// What a saved page holds compressed, in scripts that no browser runs.

/** The content of the element of that id, base64 of gzip, as a response: its json() or arrayBuffer(). */
export function unpacked(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}
