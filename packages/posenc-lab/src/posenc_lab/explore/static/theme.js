// The colours of canvases: those of the style sheet, and posenc's palette, by light or dark.

const SEQUENTIAL = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];

/** Whether the page is dark: as the address says, "dark" or "light", or else as the system has it. */
export function isDark(wanted) {
    return wanted === "dark" || (wanted !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
}

/** The theme of canvases out of the page's data: {background, ink, faint, grid, palette, unseen, diverging, sequential}. */
export function themeOf(data, dark) {
    const theme = data.theme[dark ? "dark" : "light"];
    const unseenBytes = new Uint32Array(ramp([theme.unseen, theme.unseen]).buffer)[0]; // as a pixel
    return { dark, ...theme, sequential: ramp(SEQUENTIAL), divergingRamp: ramp(theme.diverging), unseenBytes };
}

/** 256 colours between these, as bytes: red, green, blue, alpha. */
function ramp(colors) {
    const points = colors.map((color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)));
    const bytes = new Uint8ClampedArray(256 * 4);
    for (let n = 0; n < 256; n++) {
        const place = (n / 255) * (points.length - 1);
        const low = Math.min(Math.floor(place), points.length - 2);
        for (let c = 0; c < 3; c++) {
            bytes[4 * n + c] = points[low][c] + (place - low) * (points[low + 1][c] - points[low][c]);
        }
        bytes[4 * n + 3] = 255;
    }
    return bytes;
}

/** A colour of the sequential ramp for line n of count, all with a contrast to the paper. */
export function ordered(theme, n, count) {
    const [low, high] = theme.dark ? [0.36, 1] : [0, 0.6];
    const at = 4 * Math.round(255 * (low + ((high - low) * n) / Math.max(count - 1, 1)));
    return `rgb(${theme.sequential[at]}, ${theme.sequential[at + 1]}, ${theme.sequential[at + 2]})`;
}
