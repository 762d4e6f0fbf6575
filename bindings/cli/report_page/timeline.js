// SPDX-License-Identifier: Apache-2.0
// The timeline of one step, that pointer and keys move in, and the same spans by tensor.

// ---- timeline ----------------------------------------------------------------------------------
const plan = run.plan || null;
const laneTitle = (lane) => lane.kind === 'stall' ?
    'waiting: ' + CAUSE_WORDS[lane.lane] :
    lane.kind === 'update' ?
    'update kernels' :
    linkWords(lane.lane) + (lane.device > 0 ? ', device ' + lane.device : '');
const laneKind = (lane) => lane.kind === 'stall' ? STALL_KIND[lane.lane] :
    lane.kind === 'update'                       ? 'update' :
    lane.lane === 'within_tier'                  ? 'within' :
                                                   linkKind(lane.lane);
// Spans are [begin, end, bytes, pieces, tensor].
const clip = (spans, begin, end) => spans.filter((span) => span[1] >= begin && span[0] < end);
function busy(spans, begin, end) {
    let at = begin;
    let total = 0;
    for (const span of spans) {
        const from = Math.max(at, span[0]);
        const to = Math.min(end, span[1]);
        if (to > from) {
            total += to - from;
            at = to;
        }
    }
    return total;
}
// What remains of a step without the waits that lie in it.
function computing(lanes, step) {
    const waits = lanes.filter((lane) => lane.kind === 'stall')
                      .flatMap((lane) => clip(lane.spans, step.begin_ns, step.end_ns))
                      .sort((a, b) => a[0] - b[0]);
    const list = [];
    let at = step.begin_ns;
    for (const wait of waits) {
        if (wait[0] > at) list.push([at, wait[0], 0, 1, -1]);
        at = Math.max(at, wait[1]);
    }
    if (at < step.end_ns) list.push([at, step.end_ns, 0, 1, -1]);
    return list;
}
// Of several steps in turn, the part that is this one's.
const predictedOf = (step) => {
    for (const entry of plan ? plan.phases : []) {
        if (!entry.predicted) continue;
        const {turns, spans} = entry.predicted;
        if (!turns) {  // of an older library
            if (entry.name === phaseWords(step.phase)) return entry.predicted;
            continue;
        }
        const own = turns.filter((turn) => turn.phase === step.phase);
        const turn = own.find((one) => one.way === step.way) || (own.length === 1 ? own[0] : null);
        if (!turn) continue;
        const part = spans.filter((span) => span.end_ns > turn.begin_ns &&
            span.start_ns < turn.end_ns);
        return {
            step_ns: turn.end_ns - turn.begin_ns,
            spans: part.map((span) => ({
                lane: span.lane,
                start_ns: Math.max(span.start_ns, turn.begin_ns) - turn.begin_ns,
                end_ns: Math.min(span.end_ns, turn.end_ns) - turn.begin_ns
            }))
        };
    }
    return null;
};

// Each step that is drawn, with its window.
function drawnSteps(windows) {
    const list = new Map();
    for (const step of history.steps)
        for (const each of windows)
            if (step.begin_ns >= each.begin_ns && step.end_ns <= each.end_ns) list.set(step, each);
    return list;
}
// The last drawn step of the phase that took most of the time.
function firstShown(steps) {
    const total = new Map();
    for (const step of history.steps)
        total.set(step.phase, (total.get(step.phase) || 0) + step.wall_ns);
    return steps.reduce(
        (best, step, i) => total.get(step.phase) >= total.get(steps[best].phase) ? i : best, 0);
}
function timeline(windows) {
    const windowOf = drawnSteps(windows);
    const steps = [...windowOf.keys()];
    if (steps.length === 0) return;  // spans of steps whose times the report does not have
    const allLanes = windows.flatMap((each) => each.lanes);
    const made = section(
        'Timeline of links and compute',
        'What each link and the program did in one step. Transfers of one tensor that follow ' +
        'each other are one bar. ' +
            'Choose a bar with the pointer, or with the arrow keys once the picture has the ' +
            'focus; plus and minus zoom, 0 shows the whole step.');
    const choose = element(
        'select', {id: newId()},
        ...steps.map(
            (step, i) => element(
                'option', {value: i},
                `${phaseWords(step.phase)}, step ${step.step} (${time(step.wall_ns)})`)));
    choose.value = String(firstShown(steps));
    const button = (words, title, act) => {
        const it = element('button', {type: 'button', title, 'aria-label': title}, words);
        it.addEventListener('click', act);
        return it;
    };
    const readout = element('p', {class: 'readout', role: 'status', 'aria-live': 'polite'});
    let step;
    let lanes;
    let predicted;
    let view;    // [begin, end], of the run
    let end;     // of all that is drawn
    let chosen;  // [lane, span]
    let geometry;

    let window_;
    function select(index) {
        step = steps[index];
        window_ = windowOf.get(step);
        predicted = predictedOf(step);
        lanes = [{
            title: 'compute',
            kind: 'compute',
            name: 'compute',
            spans: computing(window_.lanes, step)
        }];
        // Below what was computed why it was not, and then what moved.
        const order = ['stall', 'update', 'link'];
        const sorted = [...window_.lanes].sort(
            (a, b) => order.indexOf(a.kind) - order.indexOf(b.kind));
        for (const lane of sorted) {
            const spans = clip(lane.spans, step.begin_ns, step.end_ns);
            if (spans.length > 0)
                lanes.push({
                    title: laneTitle(lane),
                    kind: laneKind(lane),
                    name: lane.lane,
                    spans,
                    link: lane.kind === 'link'
                });
        }
        for (const lane of lanes)
            lane.planned =
                predicted ? predicted.spans.filter((span) => span.lane === lane.name) : [];
        if (predicted)
            for (const name of new Set(predicted.spans.map((span) => span.lane)))
                if (!lanes.some((lane) => lane.name === name))
                    lanes.push({
                        title: linkWords(name),
                        kind: 'within',
                        name,
                        spans: [],
                        planned: predicted.spans.filter((span) => span.lane === name)
                    });
        // A step that the plan expected to be longer is drawn to the end of what was expected.
        end = Math.max(step.end_ns, step.begin_ns + (predicted ? predicted.step_ns : 0));
        view = [step.begin_ns, end];
        chosen = null;
        readout.textContent = predicted ?
            `The plan expected ${time(predicted.step_ns)} for this step; it took ${
                time(step.wall_ns)}, ${beside(step.wall_ns, predicted.step_ns)}.` :
            'No bar is chosen.';
    }
    function say() {
        const lane = lanes[chosen[0]];
        const span = lane.spans[chosen[1]];
        const long = span[1] - span[0];
        let words = `${lane.title}: `;
        if (span[4] >= 0) words += tensorWords(window_.tensors[span[4]]) + ', ';
        words += `${time(long)}, from ${time(span[0] - step.begin_ns)} of the step`;
        if (span[2] > 0)
            words +=
                `, ${bytes(span[2])} in ${count(span[3])} ${span[3] === 1 ? 'piece' : 'pieces'}`;
        if (span[2] > 0 && long > 0) words += `, ${rate(span[2] / long * 1e9)}`;
        readout.textContent = words + '.';
    }
    const made_ = chart(
        'Timeline of one step',
        'Lanes of compute, waits, updates and links over the time of a step. The line below the ' +
        'picture tells the chosen bar.',
        (picture, width) => {
            const narrow = width < 560;
            const left = narrow ? 0 : 150;
            const laneHeight = narrow ? 40 : 28;
            const room = width - left - 4;
            const x = (ns) => left + (ns - view[0]) / (view[1] - view[0]) * room;
            geometry = {left, room, laneHeight, width};
            const bottom = lanes.length * laneHeight;
            for (const at of ticks(view[1] - view[0], 1000, Math.max(2, Math.floor(room / 110)))) {
                const px = left + at / (view[1] - view[0]) * room;
                picture.append(
                    shape('line', {x1: px, x2: px, y1: 0, y2: bottom, class: 'grid'}),
                    label(
                        Math.min(px, width - 24), bottom + 15,
                        short(time(at + view[0] - step.begin_ns)), px < 20 ? '' : 'mid'));
            }
            lanes.forEach((lane, i) => {
                const y = i * laneHeight + (narrow ? 16 : 4);
                picture.append(
                    narrow ? label(0, y - 3, lane.title, 'strong') :
                             label(left - 8, y + 14, lane.title, 'end strong'));
                picture.append(shape(
                    'line', {x1: left, x2: width - 4, y1: y + 20, y2: y + 20, class: 'grid'}));
                // Bars closer than a pixel are one shape.
                let d = '';
                let open = null;
                const tall = predicted ? 11 : 18;  // what the plan expected is below
                const flush = () => {
                    if (open)
                        d += `M${open[0].toFixed(1)} ${y}H${open[1].toFixed(1)}v${tall}H${
                            open[0].toFixed(1)}z`;
                };
                for (const span of lane.spans) {
                    if (span[1] < view[0] || span[0] > view[1]) continue;
                    const from = Math.max(left, x(span[0]));
                    const to = Math.max(from + 0.8, Math.min(width - 4, x(span[1])));
                    if (open && from - open[1] < 0.6)
                        open[1] = Math.max(open[1], to);
                    else {
                        flush();
                        open = [from, to];
                    }
                }
                flush();
                picture.append(shape('path', {d: d || 'M0 0', class: 'fill-' + lane.kind}));
                let outline = '';
                for (const span of lane.planned) {
                    const from = Math.max(left, x(step.begin_ns + span.start_ns));
                    const to = Math.min(width - 4, x(step.begin_ns + span.end_ns));
                    if (to > from)
                        outline +=
                            `M${from.toFixed(1)} ${y + 14}H${to.toFixed(1)}v5H${from.toFixed(1)}z`;
                }
                if (outline) picture.append(shape('path', {d: outline, class: 'plan'}));
            });
            if (end > step.end_ns && view[1] > step.end_ns && view[0] < step.end_ns) {
                const px = x(step.end_ns);
                picture.append(
                    shape('line', {x1: px, x2: px, y1: 0, y2: bottom, class: 'budget'}));
            }
            if (chosen) {
                const span = lanes[chosen[0]].spans[chosen[1]];
                const from = Math.max(left, x(span[0]) - 1);
                const to = Math.min(width - 4, x(span[1]) + 1);
                if (to > from)
                    picture.append(shape('rect', {
                        x: from,
                        y: chosen[0] * laneHeight + (narrow ? 14 : 2),
                        width: to - from,
                        height: 22,
                        class: 'cursor'
                    }));
            }
            return bottom + 22;
        },
        'Time since the step began');
    const picture = made_.picture;
    picture.setAttribute('tabindex', '0');
    function pick(lane, span) {
        chosen = [lane, span];
        const [from, to] = lanes[lane].spans[span];
        if (to < view[0] || from > view[1]) {
            const half = (view[1] - view[0]) / 2;
            look((from + to) / 2 - half, (from + to) / 2 + half);
        }
        say();
        made_.redraw();
    }
    function look(from, to) {
        const long = Math.min(to - from, end - step.begin_ns);
        const begin = Math.min(Math.max(from, step.begin_ns), end - long);
        view = [begin, begin + long];
        made_.redraw();
    }
    function zoom(factor) {
        const at = chosen ?
            (lanes[chosen[0]].spans[chosen[1]][0] + lanes[chosen[0]].spans[chosen[1]][1]) / 2 :
            (view[0] + view[1]) / 2;
        const long = Math.max(1000, (view[1] - view[0]) / factor);
        look(at - long / 2, at + long / 2);
    }
    picture.addEventListener('pointermove', (event) => {
        const place = picture.getBoundingClientRect();
        const px = (event.clientX - place.left) / place.width * geometry.width;
        const lane = Math.floor(
            (event.clientY - place.top) / place.width * geometry.width / geometry.laneHeight);
        if (lane < 0 || lane >= lanes.length || px < geometry.left) return;
        const ns = view[0] + (px - geometry.left) / geometry.room * (view[1] - view[0]);
        const slack = 3 / geometry.room * (view[1] - view[0]);
        const at =
            lanes[lane].spans.findIndex((span) => span[0] - slack <= ns && ns <= span[1] + slack);
        if (at >= 0 && !(chosen && chosen[0] === lane && chosen[1] === at)) pick(lane, at);
    });
    picture.addEventListener('keydown', (event) => {
        const key = event.key;
        if (key === '+' || key === '=')
            zoom(2);
        else if (key === '-')
            zoom(0.5);
        else if (key === '0')
            look(step.begin_ns, end);
        else if (key.startsWith('Arrow')) {
            let [lane, at] = chosen || [0, -1];
            if (key === 'ArrowLeft') at = Math.max(0, at - 1);
            if (key === 'ArrowRight') at = Math.min(lanes[lane].spans.length - 1, at + 1);
            if (key === 'ArrowUp' || key === 'ArrowDown') {
                const now = at >= 0 ? lanes[lane].spans[at][0] : view[0];
                const way = key === 'ArrowUp' ? -1 : 1;
                do lane += way;
                while (lane >= 0 && lane < lanes.length && lanes[lane].spans.length === 0);
                if (lane < 0 || lane >= lanes.length) {
                    event.preventDefault();
                    return;
                }
                at = Math.max(0, lanes[lane].spans.findIndex((span) => span[1] >= now));
            }
            if (at >= 0 && lanes[lane].spans.length > 0) pick(lane, at);
        } else
            return;
        event.preventDefault();
    });
    choose.addEventListener('change', () => {
        select(Number(choose.value));
        made_.redraw();
    });
    made.append(
        element(
            'div', {class: 'controls'},
            element(
                'label',
                {for: choose.id
                },
                'Step'),
            choose, button('+', 'Zoom in', () => zoom(2)),
            button('\u2212', 'Zoom out', () => zoom(0.5)),
            button(
                '\u2190', 'Earlier',
                () => look(view[0] - (view[1] - view[0]) / 2, view[1] - (view[1] - view[0]) / 2)),
            button(
                '\u2192', 'Later',
                () => look(view[0] + (view[1] - view[0]) / 2, view[1] + (view[1] - view[0]) / 2)),
            button('Whole step', 'Show the whole step', () => look(step.begin_ns, end))),
        made_.figure, readout);
    select(Number(choose.value));
    const kinds =
        [['compute', 'computing'], ['in', 'toward the device'], ['out', 'away from the device']];
    if (allLanes.some((lane) => lane.kind === 'update'))
        kinds.push(['update', 'update kernels']);
    if (allLanes.some((lane) => lane.kind === 'link' && lane.lane === 'within_tier'))
        kinds.push(['within', 'mapping, zeroing, moving within a tier']);
    if (allLanes.some((lane) => lane.kind === 'link' && lane.lane === 'ranks'))
        kinds.push(['ranks', 'between ranks']);
    for (const cause of CAUSES)
        if (allLanes.some((lane) => lane.kind === 'stall' && lane.lane === cause))
            kinds.push([STALL_KIND[cause], 'waiting for ' + CAUSE_WORDS[cause]]);
    if (steps.some(predictedOf)) kinds.push(['plan', 'what the plan expected']);
    made.append(legend(kinds));
    if (!steps.some(predictedOf))
        made.append(element(
            'p', {class: 'note'},
            'This report holds no prediction of the plan to lay over the bars.'));
    if (!windows.every((each) => each.whole))
        made.append(element(
            'p', {class: 'note'},
            'The ring of spans was too short for this step: its first spans are lost.'));
    const rows = [];
    for (const each of steps)
        for (const lane of windowOf.get(each).lanes) {
            const spans = clip(lane.spans, each.begin_ns, each.end_ns);
            if (spans.length > 0)
                rows.push([
                    cellCount(each.step), phaseWords(each.phase), laneTitle(lane),
                    cellCount(sum(spans, (span) => span[3])),
                    cellTime(busy(spans, each.begin_ns, each.end_ns)),
                    cellBytes(sum(spans, (span) => span[2]))
                ]);
        }
    made.append(behind(table(
        'Lanes of the drawn steps',
        [['step'], ['phase'], ['lane'], ['pieces', 'n'], ['busy', 'n'], ['bytes', 'n']], rows)));

    // The same spans by tensor.
    const tensors = new Map();
    for (const each of windows)
        for (const lane of each.lanes) {
            if (lane.kind !== 'link') continue;
            for (const span of lane.spans) {
                const name = each.tensors[span[4]];
                if (!tensors.has(name))
                    tensors.set(name, {name, in : 0, out: 0, within: 0, ranks: 0, pieces: 0});
                const tensor = tensors.get(name);
                tensor[laneKind(lane)] += span[2];
                tensor.pieces += span[3];
            }
        }
    const moved = [...tensors.values()].filter((tensor) => tensor.in + tensor.out > 0)
                      .sort((a, b) => b.in + b.out - a.in - a.out);
    if (moved.length === 0) return;
    const top = moved.slice(0, TOP);
    section(
        'Which tensors moved',
        `Bytes that crossed a link in the ${steps.length} drawn steps, by tensor; the ` +
            `${top.length} that moved most. Small tensors that share a block are known by the ` +
            'first of them.',
        chart(
            'Bytes moved by tensor',
            top.map((tensor) => `${tensorWords(tensor.name)}: ${bytes(tensor.in + tensor.out)}`)
                .join('; '),
            (picture, width) => sidewaysBars(
                picture, width, top.map((tensor) => ({
                                            name: tensorWords(tensor.name),
                                            parts: [['in', tensor.in], ['out', tensor.out]]
                                        })),
                bytes),
            'Bytes that crossed a link, by tensor')
            .figure,
        legend([['in', 'toward the device'], ['out', 'away from the device']]),
        behind(table(
            'All tensors that moved',
            [['tensor'], ['toward the device', 'n'], ['away from it', 'n'], ['pieces', 'n']],
            moved.map(
                (tensor) =>
                    [tensorWords(tensor.name), cellBytes(tensor.in), cellBytes(tensor.out),
                     cellCount(tensor.pieces)]))));
}
if (history && history.window.steps > 0)
    timeline([...(history.older_windows || []), history.window]);
