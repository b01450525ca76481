/** A function that gives for each key of a row the sum of what stands at keys of a higher order, wherever they are in
 * the row; with `itself` at those of its own order too. */
export function following(order, itself) {
    const last = Array.from(order, (_, j) => j).sort((a, b) => order[b] - order[a]);
    return (x) => {
        const sums = new Float64Array(x.length);
        let sum = 0;
        for (let start = 0, end = 0; start < last.length; start = end) {
            let own = 0; // of the keys of one order
            for (; end < last.length && order[last[end]] === order[last[start]]; end++) {
                own += x[last[end]];
            }
            for (let n = start; n < end; n++) {
                sums[last[n]] = itself ? sum + own : sum;
            }
            sum += own;
        }
        return sums;
    };
}
