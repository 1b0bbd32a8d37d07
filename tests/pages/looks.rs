//! What must hold of every page, in light and dark, on a phone and on a screen.

use serde_json::{Value, json};

use crate::browser::Browser;

/// Each text, and each part of a chart or a bar, that is too faint on what it stands on: WCAG 2.2
/// asks for 4.5, of large texts and of graphics for 3.
const FAINT: &str = r"(() => {
    const parse = (color) => (color.match(/[\d.]+/g) ?? []).map(Number);
    const part = (value) => {
        const share = value / 255;
        return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    };
    const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    const ratio = (a, b) => {
        const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
        return (high + 0.05) / (low + 0.05);
    };
    const ground = (element) => {
        for (let one = element; one; one = one.parentElement) {
            const color = parse(getComputedStyle(one).backgroundColor);
            if (color.length === 3) return color;
        }
        return [255, 255, 255];
    };
    const faint = [];
    let looked = 0;
    const judge = (what, color, element, least) => {
        looked += 1;
        const found = ratio(parse(color), ground(element));
        if (found < least) faint.push(`${what}: ${color} has ${found.toFixed(2)} of ${least}`);
    };
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        const text = texts.currentNode.data.trim();
        if (!text || element.closest('script, style') || !element.checkVisibility()) continue;
        const style = getComputedStyle(element);
        const size = parseFloat(style.fontSize);
        const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
        judge(text, style.color, element, isLarge ? 3 : 4.5);
    }
    for (const line of document.querySelectorAll('.chart .first, .chart .second, .chart .limit')) {
        judge(line.getAttribute('class'), getComputedStyle(line).stroke, line.ownerSVGElement, 3);
    }
    for (const bar of document.querySelectorAll('.bar')) {
        judge('a bar', getComputedStyle(bar.firstElementChild).backgroundColor, bar, 3);
        judge('its edge', getComputedStyle(bar).borderTopColor, bar.parentElement, 3);
    }
    return looked > 10 ? faint : ['nothing was looked at'];
})()";

/// What is wider than the page should be: on a phone a browser shrinks a page that is too wide.
const WIDE: &str = r"(() => {
    const found = document.documentElement.scrollWidth;
    if (found <= WIDTH && innerWidth <= WIDTH) return [];
    const out = [...document.body.querySelectorAll('*')]
        .filter((one) => one.getBoundingClientRect().right > WIDTH + 1);
    return [`${found} of WIDTH`, ...out.slice(0, 5).map((one) => one.outerHTML.slice(0, 200))];
})()";

/// Every element that a screen reader cannot name, or that takes the place of another.
const NAMELESS: &str = r"(() => {
    const named = (one) => one.getAttribute('aria-label')
        || document.getElementById(one.getAttribute('aria-labelledby'))?.textContent
        || (one.tagName === 'BUTTON' && one.textContent);
    const asked = document.querySelectorAll(
        'section, button, [role=img], [role=meter], [role=progressbar]');
    const ids = [...document.querySelectorAll('[id]')].map((one) => one.id);
    return [
        ...[...asked].filter((one) => !named(one)).map((one) => one.outerHTML.slice(0, 200)),
        ...ids.filter((id, place) => ids.indexOf(id) !== place),
        ...(document.documentElement.lang ? [] : ['no language']),
        ...(document.querySelectorAll('h1').length === 1 ? [] : ['not one h1']),
        ...(document.querySelectorAll('main').length === 1 ? [] : ['not one main']),
    ];
})()";

/// Checks the page that is open in both schemes and two widths.
pub fn looks_right(browser: &Browser) {
    let mut grounds = Vec::<Value>::new();
    for scheme in ["light", "dark"] {
        browser.scheme(scheme);
        for width in [360, 1280] {
            browser.width(width);
            for check in [FAINT, WIDE, NAMELESS] {
                let check = check.replace("WIDTH", &width.to_string());
                let faults = browser.value(&check);
                assert_eq!(faults, json!([]), "{scheme}, {width} wide");
            }
        }
        let ground = "getComputedStyle(document.body).backgroundColor";
        grounds.push(browser.value(ground));
    }
    assert_ne!(grounds[0], grounds[1], "light and dark are two");
}
