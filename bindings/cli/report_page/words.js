// SPDX-License-Identifier: Apache-2.0
// The page of `stepwell report`: charts and tables from the report in the element "run". Text of
// the run enters as text nodes alone. Nothing is fetched, stored or measured. Every number that is
// shown stands in a <data> element with its exact value, and every chart has a table behind it.
const root = document.documentElement;
root.dataset.errors = '0';
window.addEventListener('error', (event) => {
    root.dataset.errors = String(Number(root.dataset.errors) + 1);
    const fault = document.getElementById('fault');
    fault.hidden = false;
    fault.textContent = 'This page could not be drawn whole, since the report lacks something ' +
        'or holds it otherwise than this stepwell expects: ' + event.message;
});

const run = JSON.parse(document.getElementById('run').textContent);
const history = run.history || null;
const CAUSES = ['nvme', 'host_device', 'collective', 'room', 'update'];
const CAUSE_WORDS = {
    nvme: 'NVMe',
    host_device: 'host and device',
    collective: 'other ranks',
    room: 'room',
    update: 'an update'
};
const LINKS = [
    'nvme_to_host', 'host_to_device', 'nvme_to_device', 'host_to_nvme', 'device_to_host',
    'device_to_nvme', 'ranks'
];
const TOWARD = new Set(['nvme_to_host', 'host_to_device', 'nvme_to_device']);
const linkKind = (link) => link === 'ranks' ? 'ranks' : TOWARD.has(link) ? 'in' : 'out';
const TOP = 12;

// ---- words and numbers -------------------------------------------------------------------------
const three = (x) => x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2);
function inUnits(value, units, base) {
    let i = 0;
    let x = value;
    while (Math.abs(x) >= base && i + 1 < units.length) {
        x /= base;
        ++i;
    }
    return (i === 0 ? String(Math.round(x)) : three(x)) + ' ' + units[i];
}
const bytes = (v) => inUnits(v, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'], 1024);
const rate = (v) => inUnits(v, ['B/s', 'KiB/s', 'MiB/s', 'GiB/s', 'TiB/s'], 1024);
function time(ns) {
    if (ns >= 120e9) return three(ns / 60e9) + ' min';
    return inUnits(ns, ['ns', '\u00b5s', 'ms', 's'], 1000);
}
// On an axis: as few digits as there are.
const short = (words) =>
    words.replace(/(\.\d*?)0+ /, '$1 ').replace('. ', ' ').replace(/^0 .*/, '0');
const percent = (share) => three(share * 100) + ' %';
const beside = (took, expected) => {
    const more = expected > 0 ? took / expected - 1 : 0;
    return Math.abs(more) < 0.01 ? 'as expected' :
        more > 0 ? `${percent(more)} longer than expected` :
                   `${percent(-more)} less than expected`;
};
const count = (v) => String(v).replace(/\B(?=(\d{3})+$)/g, '\u202f');
const linkWords = (link) =>
    link === 'within_tier' ? 'within a tier' :
    link === 'ranks'       ? 'between ranks' :
                             link.replace(/_to_/, ' \u2192 ');
const tensorWords = (name) => name === '' ? 'no single tensor' : name;
const median =
    (list, key) => [...list].sort((a, b) => key(a) - key(b))[Math.floor((list.length - 1) / 2)];
const sum = (list, key) => list.reduce((total, entry) => total + key(entry), 0);
