// The logistic function and its logarithm, which overflow for neither sign.

/** 1 / (1 + e^-x) */
export function sigmoid(x) {
    return x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x));
}

/** ln sigmoid(x); ln(1 - sigmoid(x)) is logSigmoid(-x). */
export function logSigmoid(x) {
    return Math.min(x, 0) - Math.log1p(Math.exp(-Math.abs(x)));
}
