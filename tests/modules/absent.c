/* SPDX-License-Identifier: Apache-2.0 */
/* Linked to by a module that is then taken where this is not found. */
int absent_stack(void);
int absent_stack(void)
{
    return 0;
}
