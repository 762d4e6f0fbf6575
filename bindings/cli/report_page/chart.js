// SPDX-License-Identifier: Apache-2.0
// Elements, tables and charts: what every section of the page is made of.

// ---- elements ----------------------------------------------------------------------------------
function element(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    made.append(...children.filter((child) => child !== null));
    return made;
}
function shape(name, attributes, ...children) {
    const made = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    made.append(...children);
    return made;
}
const value = (exact, words) => element('data', {value: exact}, words);
let ids = 0;
const newId = () => 'id-' + (++ids);

// columns: [heading, kind]; a cell is text, or {value, text} for a number.
function table(caption, columns, rows, chosen) {
    const head = element(
        'tr', null,
        ...columns.map(([name, kind]) => element('th', {scope: 'col', class: kind || ''}, name)));
    const body = rows.map(
        (row, at) =>
            element('tr', chosen && chosen(at) ? {class: 'chosen'} : null, ...row.map((cell, i) => {
                const inner = typeof cell === 'object' && cell !== null ?
                    value(cell.value, cell.text) :
                    String(cell);
                return i === 0 ? element('th', {scope: 'row'}, inner) :
                                 element('td', {class: columns[i][1] || ''}, inner);
            })));
    return element(
        'div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption},
        element(
            'table', null, element('caption', null, caption), element('thead', null, head),
            element('tbody', null, ...body)));
}
const cellBytes = (v) => ({value: v, text: bytes(v)});
const cellTime = (v) => ({value: v, text: time(v)});
const cellCount = (v) => ({value: v, text: count(v)});
const cellRate = (v) => ({value: v, text: rate(v)});

const main = document.getElementById('main');
function section(title, lead, ...children) {
    const id = newId();
    const made = element(
        'section', {'aria-labelledby': id}, element('h2', {id}, title),
        lead ? element('p', null, lead) : null, ...children);
    main.append(made);
    return made;
}
function behind(...tables) {
    return element('details', null, element('summary', null, 'The same as a table'), ...tables);
}
function legend(entries) {
    return element('ul', {class: 'legend'}, ...entries.map(([kind, words]) => {
        const key = shape('svg', {viewBox: '0 0 14 12', 'aria-hidden': 'true'});
        if (kind === 'bound' || kind === 'budget' || kind === 'curve')
            key.append(shape('line', {x1: 0, x2: 14, y1: 6, y2: 6, class: kind}));
        else if (kind === 'plan')
            key.append(shape('rect', {x: 1, y: 3, width: 12, height: 6, class: 'plan'}));
        else
            key.append(
                shape('rect', {x: 0, y: 0, width: 14, height: 12, rx: 2, class: 'fill-' + kind}));
        return element('li', null, key, words);
    }));
}

// A chart is drawn for the width there is, and again when that changes; letters keep their size.
const charts = [];
function chart(title, description, draw, caption) {
    const titleId = newId();
    const descriptionId = newId();
    const picture = shape('svg', {role: 'img', 'aria-labelledby': titleId + ' ' + descriptionId});
    const figure = element('figure', null, element('figcaption', null, caption), picture);
    const redraw = () => {
        const width = Math.max(260, Math.floor(figure.clientWidth));
        if (figure.clientWidth === 0) return;
        picture.replaceChildren(
            shape('title', {id: titleId}, title), shape('desc', {id: descriptionId}, description));
        const height = draw(picture, width);
        picture.setAttribute('viewBox', `0 0 ${width} ${height}`);
    };
    charts.push(redraw);
    return {figure, redraw, picture};
}
const drawAll = () => charts.forEach((redraw) => redraw());
let drawnWidth = 0;
let waiting = false;
new ResizeObserver(() => {
    if (waiting || document.body.clientWidth === drawnWidth) return;
    waiting = true;
    requestAnimationFrame(() => {
        waiting = false;
        drawnWidth = document.body.clientWidth;
        drawAll();
    });
}).observe(document.body);

// Round steps from 0 to at least `most`, in units of a thousand or of 1024.
function ticks(most, base, wanted) {
    if (!(most > 0)) return [0];
    let unit = 1;
    while (most / unit >= base) unit *= base;
    const power = Math.pow(10, Math.floor(Math.log10(most / unit / wanted)));
    const off = (m) => Math.abs(most / unit / (m * power) - wanted);
    const step = [1, 2, 5, 10].reduce((a, b) => off(b) < off(a) ? b : a) * power * unit;
    const list = [];
    for (let at = 0; at <= most * (1 + 1e-9); at += step) list.push(at);
    return list;
}
function label(x, y, words, kind) {
    return shape('text', {x, y, class: kind || ''}, words);
}
// What fits into `pixels`, about.
function shortened(words, pixels) {
    const most = Math.max(4, Math.floor(pixels / 6.6));
    if (words.length <= most) return words;
    // Names of one model begin alike and end alike.
    const end = Math.floor((most - 1) * 0.45);
    return words.slice(0, most - 1 - end) + '\u2026' + words.slice(words.length - end);
}

// Bars on their side: rows of {name, parts: [[kind, amount]], exact}; a mark is a line across.
function sidewaysBars(picture, width, rows, words, mark) {
    const names = Math.min(230, Math.floor(width * 0.36));
    const numbers = 74;
    const room = width - names - numbers - 8;
    const most = Math.max(1, mark || 0, ...rows.map((row) => sum(row.parts, (part) => part[1])));
    rows.forEach((row, i) => {
        const y = i * 24;
        picture.append(shape(
            'g', null, shape('title', null, row.name),
            label(names - 8, y + 15, shortened(row.name, names - 12), 'end strong')));
        let x = names;
        for (const [kind, amount] of row.parts) {
            const long = amount / most * room;
            if (long > 0)
                picture.append(shape(
                    'rect',
                    {x, y: y + 3, width: Math.max(long, 0.75), height: 16, class: 'fill-' + kind},
                    shape('title', null, `${row.name}: ${words(amount)}`)));
            x += long;
        }
        picture.append(label(x + 6, y + 15, words(sum(row.parts, (part) => part[1]))));
    });
    const height = rows.length * 24;
    if (mark) {
        const x = names + mark / most * room;
        picture.append(shape('line', {x1: x, x2: x, y1: 0, y2: height, class: 'budget'}));
    }
    return height + 4;
}
