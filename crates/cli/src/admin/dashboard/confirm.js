// Asks before a write.

import { element, facts } from './dom.js';

/**
 * Shows what a write does. Returns the values of its fields, or null if the operator cancels.
 * Each field is { name, label, element }.
 */
export function confirm({ title, text, shown, fields = [], button }) {
  const dialog = document.getElementById('confirm');
  document.getElementById('confirm-title').textContent = title;
  document.getElementById('confirm-text').textContent = text;
  document.getElementById('confirm-facts').replaceChildren(...facts(shown).childNodes);
  const labels = fields.map((field) => element('label', {}, field.label, ' ', field.element));
  document.getElementById('confirm-fields').replaceChildren(...labels);
  document.getElementById('confirm-ok').textContent = button;
  dialog.returnValue = 'cancel';
  return new Promise((resolve) => {
    dialog.onclose = () => {
      const isConfirmed = dialog.returnValue === 'ok';
      resolve(isConfirmed ? Object.fromEntries(fields.map((field) => [field.name, field.element.value])) : null);
    };
    dialog.showModal();
  });
}
