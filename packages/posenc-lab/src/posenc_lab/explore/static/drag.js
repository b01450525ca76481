// Parts of a drawing that are dragged themselves. A slider beside the picture does the same for the keyboard.

/** Attributes of such a part: `now()` is its value, a whole number from min to max, and set(value) another one. place(x, y,
 * value) is the value at a point of the drawing, of several that near the last. With `jumps` the part comes to where it
 * is pressed. */
export const dragged = ({ now, min, max, place, set, jumps = false }) => ({
    class: "dragged",
    onpointerdown(event) {
        const sheet = event.currentTarget.closest("svg"); // which stays when its parts are drawn anew
        const toDrawing = sheet.getScreenCTM().inverse();
        let value = now();
        const at = ({ clientX, clientY }) => {
            const { x, y } = new DOMPoint(clientX, clientY).matrixTransform(toDrawing);
            return place(x, y, value);
        };
        const off = jumps ? 0 : value - at(event);
        const move = (event) => {
            const to = Math.min(Math.max(Math.round(at(event) + off), min), max);
            if (to !== value) set((value = to));
        };
        event.preventDefault(); // no text is selected
        sheet.setPointerCapture(event.pointerId);
        sheet.addEventListener("pointermove", move);
        sheet.addEventListener("lostpointercapture", () => sheet.removeEventListener("pointermove", move), { once: true });
        if (jumps) move(event);
    },
});

/** The position at which an arrow that turns by theta at each stands at this angle: the one nearest to the last. */
export function turnedTo(angle, theta, last) {
    const [first, whole] = [angle / theta, (2 * Math.PI) / theta];
    return first + whole * Math.round((last - first) / whole);
}
