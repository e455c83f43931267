// Texts whose contrast with what is behind them is less than arguments[0], by the formula of WCAG 2.2.
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const rgba = colour => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const linear = part => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4;
const luminance = ([red, green, blue]) =>
  .2126 * linear(red / 255) + .7152 * linear(green / 255) + .0722 * linear(blue / 255);
const behind = node => {
  for (; node; node = node.parentElement) {
    const colour = rgba(getComputedStyle(node).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return [255, 255, 255, 255];
};
const hasText = node => [...node.childNodes].some(child => child.nodeType === Node.TEXT_NODE && child.data.trim());
const isDrawn = node => !['title', 'desc', 'script', 'style'].includes(node.tagName.toLowerCase()) && node.checkVisibility();
const faint = [];
for (const node of document.querySelectorAll('body, body *')) {
  if (!hasText(node) || !isDrawn(node)) continue;
  const style = getComputedStyle(node);
  const lights = [rgba(node.ownerSVGElement ? style.fill : style.color), behind(node)].map(luminance);
  const contrast = (Math.max(...lights) + .05) / (Math.min(...lights) + .05);
  if (contrast < arguments[0]) faint.push(`${node.tagName} ${node.className} "${node.textContent}": ${contrast.toFixed(2)}`);
}
return [...new Set(faint)];
