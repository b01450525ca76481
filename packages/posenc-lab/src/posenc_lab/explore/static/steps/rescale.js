// Side path of step 6: DA-Transformer multiplies where others add.

import { figure as distanceAware } from "posenc/figures/distance-aware.js";

export const figure = { ...distanceAware, name: "rescale", defaults: { ...distanceAware.defaults, w: 0.2, v: 1 } };

export const predict = { w: -0.2 };

export const question = {
    judge({ w, v }) {
        if (w === 0) return "flat";
        if (w > 0) return "far";
        return v > 2 ? "right" : "gentle";
    },
    examples: {
        right: { w: -0.3, v: 3 },
        flat: { w: 0, v: 1 },
        far: { w: 0.2, v: 1 },
        gentle: { w: -0.3, v: 1 },
    },
};
